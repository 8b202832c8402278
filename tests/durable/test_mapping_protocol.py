"""CPython's own tests of mappings, on durable maps. Some builds of Python do not include them."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import imap_wal
from storage_backends.memory import MemoryStore
from tests.kit.effort import thorough
from tests.support import embedded

mapping_tests = pytest.importorskip("test.mapping_tests")

DIFFERENCES = {
    "test_copy": "`copy` returns a dict: a durable map has a name in a store",
    "test_fromkeys": "a durable map is made by a store",
    "test_getitem": "a key that the serializer refuses cannot be set; the test sets one",
    "test_pop": "the same",
    "test_setdefault": "the same; and `setdefault(...).append` changes a copy of the value",
    "test_eq": "the same: keys with an `__eq__` of their own",
    "test_repr": "a map may be large, so its repr has its name and size",
    "test_repr_deep": "a map is not a value of another map",
}
"""Test → why a durable map does not pass it."""


class DurableMapTest(mapping_tests.TestHashMappingProtocol):  # type: ignore[name-defined]
    __test__ = False  # `test_a_durable_map_passes_tests_of_dict` runs its tests
    store: imap_wal.Store
    numbers = count()

    def _reference(self) -> dict[Any, Any]:
        return {"1": "2", "key1": "value1", "key2": "value2"}  # a tuple would be refused

    def type2test(self, **entries: Any) -> imap_wal.DurableMap[Any, Any]:
        new = self.store.map(f"m{next(self.numbers)}")
        new.update(entries)
        return new


TESTS = unittest.defaultTestLoader.getTestCaseNames(DurableMapTest)


@pytest.fixture(scope="module")
def store() -> Iterator[imap_wal.Store]:
    with embedded(MemoryStore()) as opened:
        yield opened


@pytest.mark.parametrize(
    "name",
    [
        # Many thousands of commits; test_sorted_maps.py and test_map.py have the same, smaller.
        pytest.param(name, marks=thorough) if name == "test_popitem" else name
        for name in TESTS
    ],
)
def test_a_durable_map_passes_tests_of_dict(name: str, store: imap_wal.Store) -> None:
    DurableMapTest.store = store
    result = unittest.TestResult()
    DurableMapTest(name).run(result)
    problems = [text for _, text in result.failures + result.errors]
    if name in DIFFERENCES:
        assert problems, f"{name} passes now: it is no difference any more"
    else:
        assert not problems, problems[0]


def test_differences_name_tests_of_cpython() -> None:
    assert set(TESTS) >= DIFFERENCES.keys()
