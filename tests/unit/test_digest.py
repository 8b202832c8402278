"""The digest of a partition: agent and member compute the same, and any difference changes it."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, Row
from imap_wal.read.newest.digest import digest

GOLDEN = Path(__file__).parents[1] / "golden" / "digests.json"


def row(key: bytes, value: bytes, expires_at_ms: int = 0) -> Row:
    return ("orders", key, "", value, "", False, 1, expires_at_ms, 0, (1, 1, 1, 1))


def test_digests_are_the_golden_ones() -> None:
    """The plug-in computes the same: DigestTest.java."""
    rows: list[Row] = []
    for each in json.loads(GOLDEN.read_text()):
        key, value, expires_at_ms = each["entry"]
        rows.append(row(bytes.fromhex(key), bytes.fromhex(value), expires_at_ms))
        assert digest(rows[-1:]).hex() == each["digest"]
        assert digest(rows).hex() == each["of_all_up_to_here"]


def test_the_order_of_entries_does_not_matter(seed: int) -> None:
    random = Random(seed)
    rows = [row(random.randbytes(9), random.randbytes(20)) for _ in range(100)]
    assert digest(rows) == digest(random.sample(rows, 100))


@pytest.mark.parametrize(
    ("field", "other"), [(KEY, b"other"), (VALUE, b"other"), (EXPIRES_AT_MS, 5000)]
)
def test_any_difference_changes_the_digest(field: int, other: Any, seed: int) -> None:
    random = Random(seed)
    rows = [row(random.randbytes(9), random.randbytes(20), 7000) for _ in range(100)]
    at = random.randrange(100)
    changed = list(rows[at])
    changed[field] = other
    others = [*rows[:at], cast(Row, tuple(changed)), *rows[at + 1 :]]
    assert digest(others) != digest(rows)
    assert digest(rows[1:]) != digest(rows)
    assert digest([*rows, rows[at]]) != digest(rows)


def test_the_end_of_a_key_is_part_of_it() -> None:
    assert digest([row(b"ab", b"c")]) != digest([row(b"a", b"bc")])


def test_an_expiry_counts_in_seconds() -> None:
    """Hazelcast keeps it so."""
    assert digest([row(b"a", b"b", 7000)]) == digest([row(b"a", b"b", 7999)])
    assert digest([row(b"a", b"b", 7000)]) != digest([row(b"a", b"b", 8000)])
