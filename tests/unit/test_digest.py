"""The digest of a partition: agent and member compute the same, and any difference changes it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from mmh3 import mmh3_x64_128_uintdigest

from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, Row
from imap_wal.read.view import digest

SALT = bytes(range(16))
GOLDEN = Path(__file__).parents[1] / "golden" / "digests.json"


def row(key: bytes, value: bytes, expires_at_ms: int = 0) -> Row:
    return ("orders", key, "", value, "", False, 1, expires_at_ms, 0, (1, 1, 1, 1))


def test_digests_are_the_golden_ones() -> None:
    """The plug-in computes the same: DigestTest.java."""
    rows: list[Row] = []
    golden = json.loads(GOLDEN.read_text())
    salt = bytes.fromhex(golden["salt"])
    for each in golden["entries"]:
        key, value, expires_at_ms = each["entry"]
        rows.append(row(bytes.fromhex(key), bytes.fromhex(value), expires_at_ms))
        assert digest(salt, rows[-1:]).hex() == each["digest"]
        assert digest(salt, rows).hex() == each["of_all_up_to_here"]


def test_the_order_of_entries_does_not_matter(seed: int) -> None:
    random = Random(seed)
    rows = [row(random.randbytes(9), random.randbytes(20)) for _ in range(100)]
    assert digest(SALT, rows) == digest(SALT, random.sample(rows, 100))


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
    assert digest(SALT, others) != digest(SALT, rows)
    assert digest(SALT, rows[1:]) != digest(SALT, rows)
    assert digest(SALT, [*rows, rows[at]]) != digest(SALT, rows)


def test_the_end_of_a_key_is_part_of_it() -> None:
    assert digest(SALT, [row(b"ab", b"c")]) != digest(SALT, [row(b"a", b"bc")])


def test_an_expiry_counts_in_seconds() -> None:
    """Hazelcast keeps it so."""
    assert digest(SALT, [row(b"a", b"b", 7000)]) == digest(SALT, [row(b"a", b"b", 7999)])
    assert digest(SALT, [row(b"a", b"b", 7000)]) != digest(SALT, [row(b"a", b"b", 8000)])


def test_each_salt_has_its_own_digests() -> None:
    rows = [row(b"a", b"b")]
    assert digest(SALT, rows) != digest(bytes(16), rows)


def test_no_one_can_write_entries_with_the_digest_of_others() -> None:
    """Both were possible with MurmurHash3: entries computed for a known seed, and blocks that give
    one hash after any prefix, with any seed."""
    victim, old, new = b"account-of-somebody-else", b"balance 1000000", b"balance 0"
    forged = bytes.fromhex("78787878787878648cdf63f1ae1b93ebd357296537165c")
    memory = [row(victim, old), row(b"my-key...", b"anything")]
    assert digest(SALT, memory) != digest(SALT, [row(victim, new), row(b"my-key...", forged)])
    blocks = [
        bytes.fromhex(each)
        for each in (
            "0100000000000000020000000000000003000000000000000400000000000000",
            "61a0fd21a47355c8c01f672c71178d720300000083b2317d0400000000000000",
        )
    ]
    prefix = SALT + bytes(16)
    assert len({mmh3_x64_128_uintdigest(prefix + each, 7) for each in blocks}) == 1
    for key in (b"", bytes(4), bytes(16)):
        assert len({digest(SALT, [row(key, each)]) for each in blocks}) == 2


def test_a_large_value_is_not_copied() -> None:
    rows = [row(b"a", bytes(16 << 20))]
    tracemalloc.start()
    try:
        digest(SALT, rows)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
