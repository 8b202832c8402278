"""`pytest --passed=FILE`: a stopped run goes on with what has not passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.passed import all_of

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from tests.kit import passed

def pytest_addoption(parser):
    passed.add_option(parser)

def pytest_configure(config):
    passed.start(config)

def pytest_collection_modifyitems(config, items):
    passed.leave_out(config, items)
"""
TESTS = """
import os, pytest

def test_passes(): ...

def test_fails():
    assert os.environ.get("MENDED")

def test_is_skipped():
    pytest.skip()

@pytest.fixture
def bad_end():
    yield
    assert os.environ.get("MENDED")

def test_fails_at_its_end(bad_end): ...

@pytest.mark.parametrize("number", [1, 2])
def test_of_each(number):
    assert number == 1 or os.environ.get("MENDED")
"""


def test_only_what_has_passed_is_left_out(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TESTS)
    record = tmp_path / "made" / "tests"
    run = (f"--passed={record}", "-p", "no:cacheprovider", "-p", "no:xdist")
    pytester.inline_run(*run).assertoutcome(passed=3, failed=3, skipped=1)
    assert all_of(record) == ["test_it.py::test_passes", "test_it.py::test_of_each[1]"]
    monkeypatch.setenv("MENDED", "yes")
    pytester.inline_run(*run).assertoutcome(passed=3, skipped=1)
    pytester.inline_run(*run).assertoutcome(skipped=1)
    assert len(all_of(record)) == 5


def test_a_run_without_a_record_leaves_nothing_out(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it="def test_passes(): ...")
    for _ in range(2):
        pytester.inline_run("-p", "no:xdist").assertoutcome(passed=1)
