"""The class path of the members, once for all tests here."""

from __future__ import annotations

import pytest

from tests.cluster.harness import compile_java


@pytest.fixture(scope="session")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_java(tmp_path_factory.mktemp("java"))
