"""The partition of a key as Hazelcast computes it, compared with its Python client."""

from __future__ import annotations

from random import Random

import pytest
from hazelcast.hash import hash_to_index
from hazelcast.serialization.data import Data

from imap_wal.partitions import partition_id, partition_ids

LOWEST = -(2**31)


def by_the_client(key: bytes, count: int) -> int:
    hashed = Data(key).get_partition_hash()
    return 0 if hashed == LOWEST else hash_to_index(hashed, count)


def some_keys(random: Random) -> list[bytes]:
    """Keys with and without a partition hash, of every length modulo 4."""
    sizes = [4, 5, 6, 7, 8, 13, 16, 22, 1025]
    hashes = [
        b"\0\0\0\0",
        b"\0\0\0\0",
        b"\x80\0\0\0",
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        random.randbytes(4),
        b"\0\0\0\1",
    ]
    return [random.choice(hashes) + random.randbytes(random.choice(sizes)) for _ in range(3000)]


@pytest.mark.parametrize("count", [1, 2, 271, 20_000])
def test_a_partition_is_the_one_that_hazelcast_computes(count: int) -> None:
    for key in some_keys(Random(count)):
        assert partition_id(key, count) == by_the_client(key, count)


@pytest.mark.parametrize("count", [1, 3, 271])
def test_the_partitions_of_many_keys_are_those_of_each(count: int) -> None:
    keys = some_keys(Random(count))
    assert partition_ids(keys, count) == [by_the_client(key, count) for key in keys]


def test_keys_of_other_formats_are_in_some_partition() -> None:
    """An embedded store may have written into the map."""
    keys = [b"", b"a", b"abcd", b"1234567", *[b"x%03d" % number for number in range(200)]]
    assert all(0 <= each < 7 for each in partition_ids(keys, 7))
