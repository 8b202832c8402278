"""Tests of other libraries, on durable maps; test_mapping_protocol.py has those of CPython.

zict        the checks of its package `zict.tests`
sqlitedict  sqlitedict_suite.py: the module of its sdist that tests a mapping. The others test
            files, tables and threads of SQLite, and the arguments of its class
"""

from __future__ import annotations

import importlib
import inspect
import sys
import unittest
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

import imap_wal
from storage_backends.memory import MemoryStore
from tests.support import embedded

zict_tests = pytest.importorskip("zict.tests.utils_test")

DIFFERENCES: dict[str, str] = {
    "check_closing": "a store is closed, not a map",
}
"""Check → why a durable map does not pass it."""
CHECKS: dict[str, Callable[[Any], None]] = {
    name: check
    for name, check in inspect.getmembers(zict_tests, inspect.isfunction)
    if name.startswith("check_")
    and len(inspect.signature(check).parameters) < 3
    and name != "check_items"  # a part of others
}
numbers = count()


@pytest.fixture(scope="module")
def store() -> Iterator[imap_wal.Store]:
    with embedded(MemoryStore()) as opened:
        yield opened


@pytest.fixture
def suite(store: imap_wal.Store, monkeypatch: pytest.MonkeyPatch) -> unittest.TestSuite:
    class SqliteDict(imap_wal.DurableMap[Any, Any]):
        """Each is a map of its own."""

        def __init__(self) -> None:
            new = store.map(f"sqlitedict {next(numbers)}")
            super().__init__(new._writer, new._state)

        def close(self) -> None:
            pass

    monkeypatch.setitem(sys.modules, "sqlitedict", SimpleNamespace(SqliteDict=SqliteDict))
    module = importlib.import_module("tests.durable.sqlitedict_suite")
    monkeypatch.setattr(module, "sqlitedict", sys.modules["sqlitedict"])
    return unittest.defaultTestLoader.loadTestsFromTestCase(module.TempSqliteDictTest)


def test_differences_name_checks_of_zict() -> None:
    assert CHECKS.keys() >= DIFFERENCES.keys()
    assert len(CHECKS) >= 7


@pytest.mark.parametrize("name", CHECKS)
def test_a_durable_map_passes_checks_of_zict(name: str, store: imap_wal.Store) -> None:
    durable_map = store.map(f"zict {next(numbers)}")
    if name not in DIFFERENCES:
        CHECKS[name](durable_map)
        return
    with pytest.raises((AssertionError, AttributeError)):  # else it is no difference any more
        CHECKS[name](durable_map)


def test_a_durable_map_passes_tests_of_sqlitedict(suite: unittest.TestSuite) -> None:
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun == 7
    assert not [text for _, text in result.failures + result.errors]
