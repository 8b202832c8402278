"""The index of a merge: newest of every key, and no more memory than its limit."""

from __future__ import annotations

import errno
import random
import sys
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from imap_wal import partitions as hashing
from imap_wal.entry import DELETED, EXPIRES_AT_MS, KEY, MAP, ORDER, VALUE, Row, clear_of
from imap_wal.errors import StorageUnavailable
from imap_wal.partitions import Partitions, partition_id
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.runs import Run, RunWriter
from tests.histories import put
from tests.kit.effort import every


def rows_of(random_: random.Random, count: int) -> list[tuple[str, Row]]:
    """Changes of few keys by two nodes; each partition version belongs to one of them."""
    found = []
    for request in range(count):
        version = random_.randrange(1, 50)
        value = None if random_.random() < 0.2 else random_.randbytes(random_.randrange(40)).hex()
        name = random_.choice(("a", "b"))
        key = "" if random_.random() < 0.02 else f"k{random_.randrange(200)}"
        found.append(
            ("n1" if version % 2 else "n2", put(key, value, (1, version, 1, request), name))
        )
    return found


@pytest.mark.parametrize("memory_bytes", [1 << 30, 100_000, 1])
def test_an_index_equals_a_dict_in_memory_and_on_scratch(
    memory_bytes: int, seed: int, tmp_path: Path
) -> None:
    random_ = random.Random(seed)
    history = rows_of(random_, 3000)
    index = NewestIndex(memory_bytes, tmp_path)
    expected: dict[tuple[str, bytes], tuple[str, Row]] = {}
    while history:
        size = random_.randrange(1, 200)
        batch, history = history[:size], history[size:]
        for node in ("n1", "n2"):
            index.add(node, [row for of, row in batch if of == node])
        for node, row in batch:
            known = expected.get((row[MAP], row[KEY]))
            if known is None or known[1][ORDER] < row[ORDER]:
                expected[row[MAP], row[KEY]] = (node, row)
    assert index.overflowed == (memory_bytes < 1 << 30)
    assert index.maps() == ["a", "b"]
    for name in ("a", "b"):
        mine = {key: found for (of, key), found in expected.items() if of == name}
        assert index.count(name) == len(mine)
        for rows_max in (1, 7, 10_000):
            found = [
                item
                for rows, nodes in index.batches_with_nodes(name, rows_max, ordered=True)
                for item in zip(nodes, rows, strict=True)
            ]
            assert found == [mine[key] for key in sorted(mine)]
        keys = [*mine, b"absent"]
        random_.shuffle(keys)
        assert index.get(name, keys) == [mine[key][1] if key in mine else None for key in keys]
    index.remove("a")
    assert index.maps() == ["b"] and index.count("a") == 0
    index.close()
    assert list(tmp_path.iterdir()) == []


def test_memory_stays_within_its_bound(tmp_path: Path) -> None:
    index = NewestIndex(20_000_000, tmp_path)
    tracemalloc.start()
    try:
        for start in range(0, 60_000, 1000):
            index.add(
                "n1",
                [
                    put(f"key-{number}", "v" * 1000, (1, 1, 1, number))
                    for number in range(start, start + 1000)
                ],
            )
        assert tracemalloc.get_traced_memory()[1] < 26_000_000
    finally:
        tracemalloc.stop()
    assert index.overflowed and index.count("orders") == 60_000
    index.close()


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1])
def test_a_conflict_is_one_only_while_nothing_is_newer(memory_bytes: int, tmp_path: Path) -> None:
    for arriving in (
        [("n1", 1), ("n2", 1), ("n3", 2)],
        [("n3", 2), ("n1", 1), ("n2", 1)],
        [("n1", 1), ("n3", 2), ("n2", 1)],
    ):
        index = NewestIndex(memory_bytes, tmp_path)
        for request, (node, version) in enumerate(arriving):
            index.add(node, [put("k", node, (1, version, 1, request))])
        assert [row[VALUE] for rows in index.batches("orders") for row in rows] == [b"n3"]
        assert list(index.conflicts()) == []
        index.add("n4", [put("k", "n4", (1, 2, 1, 0))])
        assert [row and row[VALUE] for row in index.get("orders", [b"k"])] == [b"n3"]
        (found,) = index.conflicts()
        assert (found.map, found.key, [node for _, node in found.claims]) == (
            "orders",
            b"k",
            ["n3", "n4"],
        )
        index.close()


@every(3)
@pytest.mark.parametrize("memory_bytes", [1 << 30, 30_000, 1])
def test_many_conflicting_nodes_merge_alike_in_any_order(
    memory_bytes: int, seed: int, tmp_path: Path
) -> None:
    """The entries of many nodes in conflict give the same rows and conflicts in any order. Against
    the definition: of all rows of a key those with the greatest (incarnation, partition version)
    count, of each node the newest."""
    random_ = random.Random(seed)
    for _ in range(10):
        history: dict[bytes, list[tuple[str, Row]]] = {}
        index = NewestIndex(memory_bytes, tmp_path)
        for request in range(random_.randrange(1, 400)):
            node = f"n{random_.randrange(4)}"
            order = (
                random_.randrange(1, 3),
                random_.randrange(1, 30 if random_.random() < 0.9 else 3),
                1,
                request,
            )
            row = put(
                f"k{random_.randrange(25)}",
                None if random_.random() < 0.2 else request,
                order,
                expires_at_ms=request,
            )
            history.setdefault(row[KEY], []).append((node, row))
            index.add(node, [row])
        expected: dict[bytes, tuple[str, Row]] = {}
        conflicts: dict[bytes, set[str]] = {}
        for key, rows in history.items():
            top = max(row[ORDER][:2] for _, row in rows)
            newest = {node: row for node, row in rows if row[ORDER][:2] == top}  # requests rise
            expected[key] = min(newest.items(), key=lambda each: (each[1][5], each[0]))
            if len(newest) > 1:
                conflicts[key] = set(newest)
        for key in history:
            assert index.get("orders", [key, b"absent"]) == [expected[key][1], None]
            assert [{node for _, node in each.claims} for each in index.conflicts()] == (
                [conflicts[key]] if key in conflicts else []
            )
        every = [
            (row[KEY], node)
            for rows, nodes in index.every("orders")
            for row, node in zip(rows, nodes, strict=True)
        ]
        for key, nodes in conflicts.items():  # enough for a merge elsewhere to see the same
            assert {node for of, node in every if of == key} == nodes
        assert index.count("orders") == len(history)
        found = {
            row[KEY]: (node, row)
            for rows, nodes in index.batches_with_nodes("orders", 3)
            for row, node in zip(rows, nodes, strict=True)
        }
        assert found == expected
        states = [state for states in index.keys("orders", 3) for state in states]
        assert sorted(states) == sorted(
            (key, row[DELETED], row[EXPIRES_AT_MS]) for key, (_, row) in expected.items()
        )
        assert {each.key for each in index.conflicts()} == conflicts.keys()
        index.close()


def on_disk(folder: Path) -> int:
    """Bytes of the unnamed files in a folder that this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(link.readlink()).startswith(str(folder)):
                found += link.stat().st_blocks * 512
    return found


def test_disk_use_follows_rows_and_not_writes(
    tmp_path: Path,
) -> None:
    """Disk use grows with the number of newest rows, not with the number of writes."""
    most = {}
    for keys, rounds in ((4_000, 1), (8_000, 1), (16_000, 1), (4_000, 12)):
        index = NewestIndex(1_000_000, tmp_path)
        taken = 0
        for round_ in range(rounds):
            for start in range(0, keys, 200):
                numbers = range(start, start + 200)
                index.add(
                    "n1",
                    [
                        put(f"key-{number * 7919 % keys}", "v" * 500, (1, round_, 1, number))
                        for number in numbers
                    ],
                )
            taken = max(taken, on_disk(tmp_path))
        assert index.count("orders") == keys
        assert sum(map(len, index.batches("orders"))) == keys
        most[keys, rounds] = taken
        assert list(tmp_path.iterdir()) == [], (
            "the files have no name: nothing is left after a kill"
        )
        index.close()
        assert on_disk(tmp_path) == 0
    assert most[8_000, 1] < 2.5 * most[4_000, 1] and most[16_000, 1] < 2.5 * most[8_000, 1], most
    assert most[4_000, 12] < 5 * most[4_000, 1], "twelve times as many records of the same keys"


@pytest.mark.parametrize("memory_bytes", [1 << 30, 8_000_000])
def test_a_page_of_large_values_is_bounded_by_bytes(memory_bytes: int, tmp_path: Path) -> None:
    index = NewestIndex(memory_bytes, tmp_path)
    size = 1 << 20
    tracemalloc.start()
    try:
        for number in range(40):
            index.add("n1", [put(f"key-{number:02d}", "v" * size, (1, 1, 1, number))])
        count = 0
        for rows, _ in index.batches_with_nodes("orders", ordered=True):
            count += len(rows)
            assert len(rows) == 1 or sum(len(row[VALUE] or b"") for row in rows) <= index.page_bytes
        assert count == 40 and index.page_bytes <= max(memory_bytes // 16, 65536)
        assert sum(map(len, index.keys("orders"))) == 40
        assert (
            len(
                index.get(
                    "orders",
                    [b"key-%02d" % number for number in range(40)],
                    bytes_max=7 * size // 2,
                )
            )
            == 3
        ), "at most that many bytes"
        if memory_bytes < 1 << 30:
            assert index.overflowed and tracemalloc.get_traced_memory()[1] < 2 * memory_bytes
    finally:
        tracemalloc.stop()
    index.close()


def test_a_listing_of_keys_reads_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = NewestIndex(1, tmp_path)
    for number in range(50):
        index.add(
            f"n{number % 3}", [put(f"key-{number}", "v", (1, 1, 1, number), expires_at_ms=number)]
        )

    def refuse(*_: object) -> bytes:
        raise AssertionError("a value was read")

    monkeypatch.setattr(Run, "value", refuse)
    assert sorted(key for states in index.keys("orders", 7) for key, _, _ in states) == sorted(
        b"key-%d" % number for number in range(50)
    )
    assert index.count("orders") == 50
    with pytest.raises(AssertionError, match="a value was read"):
        list(index.batches("orders"))


@pytest.mark.parametrize("memory_bytes", [1 << 30, 60_000, 1])
def test_listing_misses_no_key_while_the_index_changes(
    memory_bytes: int, seed: int, tmp_path: Path
) -> None:
    random_ = random.Random(seed)
    rows = [put(f"key-{number:03d}", number, (1, 1, 1, number)) for number in range(300)]
    index = NewestIndex(memory_bytes, tmp_path)
    index.add("n1", rows)
    for listing in (index.keys("orders", 7), index.batches("orders", 7)):
        found: list[bytes] = []
        for page in listing:
            found += [each[0] if isinstance(each[0], bytes) else each[1] for each in page]
            match random_.randrange(4):
                case 0:
                    index.add(
                        "n2",
                        [
                            put(f"key-{number:03d}", "new", (1, 2, 1, random_.randrange(10**6)))
                            for number in range(0, 300, 9)
                        ],
                    )
                case 1:
                    index.remove("orders")
                    index.add("n1", rows)
                case 2:
                    index.forget()
                    index.add("n1", rows)
                case _:
                    index.get("orders", [b"key-001"])  # merges runs
        assert sorted(found) == [row[KEY] for row in rows]
    index.close()


def test_a_full_scratch_is_reported_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = NewestIndex(20_000, tmp_path)
    finish = RunWriter.finish

    def full(writer: RunWriter) -> Run:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunWriter, "finish", full)
    with pytest.raises(StorageUnavailable, match=str(tmp_path)):
        for number in range(100):
            index.add("n1", [put(f"key-{number}", number, (1, 1, 1, number))])
    known = index.count("orders")
    assert known > 10
    monkeypatch.setattr(RunWriter, "finish", finish)
    index.add("n1", [put(f"key-{number}", number, (1, 1, 1, number)) for number in range(100)])
    assert index.overflowed and index.count("orders") == 100 == sum(
        map(len, index.batches("orders"))
    )
    monkeypatch.setattr(RunWriter, "finish", full)
    assert None not in index.get("orders", [b"key-%d" % number for number in range(100)]), (
        "lookups do without a merge"
    )
    index.close()


def test_read_cost_does_not_depend_on_node_count(tmp_path: Path) -> None:
    """Reading costs the same whether one node wrote or a hundred."""
    calls = {}
    for nodes in (1, 100):
        index = NewestIndex(1 << 30, tmp_path)
        for number in range(1000):
            index.add(f"n{number % nodes}", [put(f"key-{number}", number, (1, 1, 1, number))])
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            assert sum(map(len, index.batches("orders"))) == 1000
            assert None not in index.get("orders", [b"key-%d" % number for number in range(1000)])
        finally:
            sys.setprofile(None)
        calls[nodes] = count
        index.close()
    assert calls[100] < 2 * calls[1], calls


def test_row_listing_continues_after_a_move_to_scratch(
    tmp_path: Path,
) -> None:
    """A listing of rows continues when its map is moved to scratch between two pages."""

    def rows(name: str, count: int, size: int) -> list[Row]:
        return [
            (name, b"%03d" % each, "k", bytes(size), "v", False, 1, 0, 0, (1, 0, 1, each + 1))
            for each in range(count)
        ]

    index = NewestIndex(200_000, tmp_path)
    index.add("n1", rows("m", 4, 30_000))
    listing = index.batches_with_nodes("m")
    first, nodes = next(listing)
    index.add("n2", rows("other", 20, 30_000))
    index.add("n2", rows("m", 1, 10))
    assert index.overflowed and len(first) < 4
    found = [
        (row[KEY], node)
        for page, owners in [(first, nodes), *listing]
        for row, node in zip(page, owners, strict=True)
    ]
    assert found == [(b"%03d" % each, "n1") for each in range(4)]


def keys_in(index: NewestIndex, name: str, wanted: Partitions) -> list[bytes]:
    return [key for states in index.keys(name, 7, wanted) for key, _, _ in states]


@every(3)
@pytest.mark.parametrize("memory_bytes", [100_000, 1 << 30, 1])
def test_partition_keys_are_listed_while_keys_are_added(
    memory_bytes: int, seed: int, tmp_path: Path
) -> None:
    random_ = random.Random(seed)
    index = NewestIndex(memory_bytes, tmp_path)
    there: set[bytes] = set()
    for count in (1, 11, 271) * 3:
        for node, row in rows_of(random_, 300):
            index.add(node, [row])
            if row[MAP] == "a":
                there.add(row[KEY])
        wanted = Partitions(
            frozenset(random_.sample(range(count), random_.randrange(count + 1))), count
        )
        found = keys_in(index, "a", wanted)
        assert len(found) == len(set(found))
        assert set(found) == {key for key in there if partition_id(key, count) in wanted.wanted}


def test_a_key_is_hashed_once_however_often_partitions_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[bytes] = []
    partition_ids = hashing.partition_ids

    def counted(keys: Sequence[bytes], count: int) -> list[int]:
        hashed.extend(keys)
        return partition_ids(keys, count)

    monkeypatch.setattr(hashing, "partition_ids", counted)
    index = NewestIndex(1 << 30)
    rows = [put(f"k{number}", "v", (1, 1, 1, number)) for number in range(1000)]
    index.add("n1", rows[:900])
    thirds = [Partitions(frozenset(range(first, 271, 3)), 271) for first in range(3)]
    assert sum(len(keys_in(index, "orders", third)) for third in thirds) == len(hashed) == 900
    index.add("n1", rows)
    assert sum(len(keys_in(index, "orders", third)) for third in thirds) == len(hashed) == 1000


def test_a_reader_does_not_hash_the_keys_of_members_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each listing of a reader costs one pass; what members use is kept."""
    hashed: list[int] = []
    partition_ids = hashing.partition_ids

    def counted(keys: Sequence[bytes], count: int) -> list[int]:
        hashed.extend([count] * len(keys))
        return partition_ids(keys, count)

    monkeypatch.setattr(hashing, "partition_ids", counted)
    index = NewestIndex(1 << 30)
    rows = [put(f"k{number}", "v", (1, 1, 1, number)) for number in range(100)]
    index.add("n1", rows)
    keys = [row[KEY] for row in rows]
    member = Partitions(frozenset(range(9)), 271)
    found = keys_in(index, "orders", member)
    for count in (7, 8, 7):
        reader = Partitions(frozenset(range(3)), count, is_remembered=False)
        assert set(keys_in(index, "orders", reader)) == {
            key for key in keys if partition_id(key, count) < 3
        }
        assert keys_in(index, "orders", member) == found
    assert (hashed.count(271), hashed.count(7), hashed.count(8)) == (100, 200, 100)


def test_the_keys_of_some_partitions_are_listed_after_a_clear(tmp_path: Path) -> None:
    index = NewestIndex(100_000, tmp_path)
    everything = Partitions(frozenset(range(10)), 11)
    index.add("n1", [put(f"k{number}", "v", (1, 1, 1, number)) for number in range(100)])
    before = keys_in(index, "orders", everything)
    index.add(
        "n1",
        [clear_of("orders", partition, 11, 1000, (1, 1, 2, partition)) for partition in range(10)],
        clears=True,
    )
    after = [put(f"l{number}", "v", (1, 1, 3, number)) for number in range(100)]
    index.add("n1", after)
    found = keys_in(index, "orders", everything)
    assert before and not set(before) & set(found)
    assert set(found) == {row[KEY] for row in after if partition_id(row[KEY], 11) != 10}
