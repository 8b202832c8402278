"""Rows leave the memory for scratch while nothing reads, and every read still finds them."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from imap_wal.agent.reads import merges
from imap_wal.agent.reads.merges import AGAIN_S_MAX, RELEASE_S, Merges
from imap_wal.entry import DELETED, KEY, ORDER, Row, clear_of
from imap_wal.errors import StorageUnavailable
from imap_wal.partitions import Partitions, partition_id
from imap_wal.read.newest import index as indexes
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.memory_rows import PART_ROWS
from imap_wal.read.newest.packed_keys import PackedKeys
from imap_wal.read.newest.runs import RunWriter
from imap_wal.read.newest.table import in_order
from tests.agent.harness import config, entry, hazelcast_key, plugin, put_keys, serving
from tests.histories import put
from tests.kit.effort import share
from tests.support import FakeClock, eventually

COUNT, OTHER_COUNT = 7, 11
HEAD = "\0" * 8
"""The first bytes of a key: its hash is then that of the bytes after them."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index with few rows is worth a release."""
    monkeypatch.setattr(indexes, "RELEASE_BYTES", 1)


def owned(index: NewestIndex, number: int) -> dict[bytes, Row]:
    """The live rows of one partition, by all ways to read them."""
    partitions = Partitions(frozenset({number}), COUNT)
    pages = list(index.keys("a", 3, partitions))
    listed = sorted(key for page in pages for key, deleted, _ in page if not deleted)
    live = {row[KEY]: row[:10] for row in index.get("a", listed) if row is not None}
    rows = index.in_memory("a", partitions)
    assert rows is not None or not index._stored.are_placed_by(COUNT)
    assert rows is None or live == {row[KEY]: row[:10] for row in rows if not row[DELETED]}
    assert sorted(live) == listed
    return live


@pytest.mark.parametrize("memory_bytes", [1 << 30, 20_000])
def test_an_index_equals_a_dict_over_releases(memory_bytes: int, seed: int, tmp_path: Path) -> None:
    """Changes by two nodes, clears and removed maps, and releases at any time, for two counts of
    partitions, of which some are interrupted. With little memory, the index moves rows to scratch
    by itself too."""
    random_ = random.Random(seed)
    for _ in range(share(160)):
        index, expected = NewestIndex(memory_bytes, tmp_path), dict[bytes, Row]()
        cleared = dict.fromkeys(range(COUNT), (0, 0, 0, 0))
        for request in range(random_.randrange(1, 600)):
            version = random_.randrange(1, 50)
            node = "n1" if version % 2 else "n2"
            action = random_.random()
            if action < 0.03:
                ends = random_.randrange(40)
                looks = iter([*[False] * ends, *[True] * 2])
                count = COUNT if random_.random() < 0.8 else OTHER_COUNT
                index.release(count, bool if ends > 20 else lambda looks=looks: next(looks))
            elif action < 0.04:
                number, order = random_.randrange(COUNT), (1, version, 1, request)
                index.add(node, [clear_of("a", number, COUNT, 0, order)], clears=True)
                for key in [key for key in expected if partition_id(key, COUNT) == number]:
                    if expected[key][ORDER] < order:
                        del expected[key]
                cleared[number] = max(cleared[number], order)
            elif action < 0.045:
                index.remove("a")
                expected.clear()
                cleared = dict.fromkeys(range(COUNT), (0, 0, 0, 0))
            else:
                value = None if random_.random() < 0.2 else "v" * random_.randrange(40)
                row = put(f"{HEAD}{random_.randrange(150)}", value, (1, version, 1, request), "a")
                index.add(node, [row])
                newest = expected[row[KEY]][ORDER] if row[KEY] in expected else (0, 0, 0, 0)
                if row[ORDER] > max(newest, cleared[partition_id(row[KEY], COUNT)]):
                    expected[row[KEY]] = row
        live = {key: row for key, row in expected.items() if not row[DELETED]}
        keys = [*expected, b"absent"]
        found = [row for row in index.get("a", keys) if row is not None and not row[DELETED]]
        assert {row[KEY]: row[:10] for row in found} == live
        assert index.key_class("a") == "K" or not live
        if random_.random() < 0.5:
            index.release(COUNT, bool)
            assert not index.is_releasable(COUNT)
            assert index._stored.are_placed_by(COUNT) or index.overflowed
        parts = [owned(index, number) for number in range(COUNT)]
        assert {key: row for part in parts for key, row in part.items()} == live
        index.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_scratch_leaves_the_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(writer: RunWriter) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    index = NewestIndex(1 << 30, tmp_path)
    rows = [put(f"k{number}", "v", (1, 1, 1, number), "a") for number in range(100)]
    index.add("n1", rows)
    with monkeypatch.context() as little:
        little.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100_000))
        with pytest.raises(StorageUnavailable, match="free bytes"):
            index.release(COUNT, bool)
    monkeypatch.setattr(RunWriter, "finish", full)
    with pytest.raises(StorageUnavailable, match="No space left"):
        index.release(COUNT, bool)
    assert index.is_releasable(COUNT) and index.known_count() == 100
    assert sum(len(owned(index, number)) for number in range(COUNT)) == 100
    monkeypatch.undo()
    index.close()


def test_a_release_ends_when_a_reader_waits(tmp_path: Path) -> None:
    """Nothing has changed; the next one succeeds."""
    index = NewestIndex(1 << 30, tmp_path)
    rows = [put(f"k{number}", "v", (1, 1, 1, number), "a") for number in range(3000)]
    index.add("n1", rows)
    waits = iter((False, True))
    index.release(COUNT, lambda: next(waits))
    assert index.is_releasable(COUNT) and index.known_count() == 3000
    index.release(COUNT, bool)
    assert not index.is_releasable(COUNT)
    assert sum(len(owned(index, number)) for number in range(COUNT)) == 3000
    index.close()


def updated(index: NewestIndex, keys: int, version: int) -> None:
    """All these keys are changed."""
    index.add(
        "n1", [put(f"{HEAD}{number}", "v", (1, version, 1, 1), "a") for number in range(keys)]
    )


def test_every_part_of_a_release_ends_when_a_reader_waits(tmp_path: Path) -> None:
    """After the check that finds a waiting reader, nothing more is done. Reads are right then, and
    the next release does the rest."""
    keys = 2 * PART_ROWS

    def begun() -> NewestIndex:
        index = NewestIndex(1 << 30, tmp_path)
        updated(index, keys, 1)
        index.release(COUNT, bool)
        updated(index, keys, 2)
        return index

    index, parts = begun(), list[str]()

    def look() -> bool:
        runs = len(index._stored.runs)
        parts.append("rows leave" if index._leaving else "write" if runs == 1 else "merge")
        return False

    index.release(COUNT, look)
    assert set(parts) == {"write", "rows leave", "merge"}
    index.close()
    for waits_at in range(1, len(parts) + 1):
        index, looks = begun(), 0

        def waits(waits_at: int = waits_at) -> bool:
            nonlocal looks
            looks += 1
            return looks == waits_at

        index.release(COUNT, waits)
        assert looks == waits_at, "it has ended"
        live = [row for number in range(COUNT) for row in owned(index, number).values()]
        assert len(live) == keys and {row[ORDER][1] for row in live} == {2}
        updated(index, 3, 3)
        index.release(COUNT, bool)
        assert not index._leaving and len(index._stored.runs) <= 2
        live = [row for number in range(COUNT) for row in owned(index, number).values()]
        assert len(live) == keys and sum(row[ORDER][1] == 3 for row in live) == 3
        index.close()


def test_updates_of_the_same_keys_take_no_more_memory(tmp_path: Path) -> None:
    index = NewestIndex(1 << 30, tmp_path)
    updated(index, 100, 1)
    index.release(COUNT, bool)
    first = index._memory_for_rows
    for version in range(2, 40):
        updated(index, 100, version)
        index.release(COUNT, bool)
    assert index._memory_for_rows == first < index._memory_bytes
    assert len(index._stored.runs) == 1
    index.close()


def test_another_partition_count_gets_its_own_places(tmp_path: Path) -> None:
    """The cluster was started again with another number of partitions."""
    index = NewestIndex(1 << 30, tmp_path)
    updated(index, 100, 1)
    index.release(OTHER_COUNT, bool)
    assert index.in_memory("a", Partitions(frozenset({1}), COUNT)) is None
    assert sum(len(owned(index, number)) for number in range(COUNT)) == 100, "it reads them all"
    updated(index, 10, 2)
    assert index.is_releasable(COUNT)
    index.release(COUNT, bool)
    assert index.in_memory("a", Partitions(frozenset({1}), COUNT))
    assert sum(len(owned(index, number)) for number in range(COUNT)) == 100
    assert not index.is_releasable(COUNT)
    index.close()


@pytest.mark.parametrize("partitions", [None, Partitions(frozenset(range(COUNT - 1)), COUNT)])
def test_a_listing_misses_no_key_over_releases(
    partitions: Partitions | None, seed: int, tmp_path: Path
) -> None:
    random_ = random.Random(seed)
    keys = [f"{HEAD}{number}".encode() for number in range(300)]
    index = NewestIndex(1 << 30, tmp_path)
    updated(index, 300, 1)
    for version in range(2, 8):
        found = list[bytes]()
        for page in index.keys("a", 7, partitions):
            found += [key for key, _, _ in page]
            action = random_.random()
            if action < 0.1:
                updated(index, random_.randrange(300), version)
            elif action < 0.3:
                count = random_.choice((COUNT, OTHER_COUNT))
                index.release(count, lambda: random_.random() < 0.1)
        assert sorted(found) == sorted(
            key for key in keys if partitions is None or partition_id(key, COUNT) != COUNT - 1
        )
    index.close()


def test_a_missing_scratch_folder_leaves_rows_in_memory(tmp_path: Path) -> None:
    index = NewestIndex(1 << 30, tmp_path / "removed")
    updated(index, 100, 1)
    with pytest.raises(StorageUnavailable, match="removed"):
        index.release(COUNT, bool)
    assert index.known_count() == 100
    index.close()


def _nothing(count: int, pause: Callable[[], bool]) -> None:
    """A release that was interrupted, or one that has no effect."""


def _no_room(count: int, pause: Callable[[], bool]) -> None:
    raise StorageUnavailable("no room")


def _fault(count: int, pause: Callable[[], bool]) -> None:
    raise RuntimeError("a fault")


@pytest.mark.parametrize(
    ("release", "pause_s"), [(_nothing, RELEASE_S), (_no_room, AGAIN_S_MAX), (_fault, AGAIN_S_MAX)]
)
def test_a_release_never_begins_again_at_once(
    release: Callable[[int, Callable[[], bool]], None], pause_s: float
) -> None:
    """Whatever its result was. A read in between does not shorten the time."""
    clock = FakeClock()
    view: Any = SimpleNamespace(is_releasable=lambda count: True, release=release)
    waits = Merges(view, int, clock, tail_timeout_s=1, waits=bool, at_once=False)
    waits.partition_count = COUNT
    clock.advance(RELEASE_S)
    assert waits.due_in_s(is_read=False) == 0
    with suppress(RuntimeError):
        waits.without_request(threading.Event(), is_read=False)
    assert waits.due_in_s(is_read=False) == pause_s
    waits.was_read()
    assert waits.due_in_s(is_read=False) == pause_s


def test_only_a_request_ends_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that end do not."""
    monkeypatch.setattr(merges, "RELEASE_S", 0.05)
    with serving(config(tmp_path)) as agent, plugin(agent.config) as member:
        looks = list[bool]()

        def release(count: int, pause: Callable[[], bool]) -> None:
            agent._reads.forget(b"gone")
            looks.append(pause())

        put_keys(member, [hazelcast_key(1)])
        monkeypatch.setattr(agent._view, "release", release)
        assert member.client.ask("keys", "orders", None, 1000)[0][3] == 1
        eventually(lambda: looks, "a release")
        assert looks[0] is False


def test_only_rows_of_some_size_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of the same keys take no more memory, so they cause no further release."""
    monkeypatch.setattr(indexes, "RELEASE_BYTES", 100_000)
    index = NewestIndex(1 << 30, tmp_path)
    for version in range(1, 500):
        index.add("n1", [put("k", "v" * 1000, (1, version, 1, 1), "a")])
    assert index.is_releasable(COUNT), "as far as it is known without counting"
    index.release(COUNT, bool)
    assert not index.is_releasable(COUNT) and index.known_count() == 1, "it is still in memory"
    index.close()


def test_packed_keys_and_parts_sort_as_lists_do(seed: int) -> None:
    random_ = random.Random(seed)
    keys = [random_.randbytes(random_.randrange(4)) for _ in range(70_000)]
    assert in_order(keys) == sorted(keys)
    assert in_order([]) == []
    packed = PackedKeys()
    for key in keys[:100]:
        packed.append(key)
    assert packed[:] == keys[:100] and packed[-1] == keys[99] and len(packed) == 100


def test_an_agent_releases_what_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listings, digests and values are as before; a change since then is found too."""
    monkeypatch.setattr(merges, "RELEASE_S", 0.05)
    settings = config(tmp_path)
    keys = [hazelcast_key(number) for number in range(500)]
    partitions = list(range(0, 271, 2))
    with serving(settings) as agent, plugin(settings) as member:
        put_keys(member, keys)

        def read() -> tuple[object, ...]:
            header, _ = member.client.ask("list", "orders", None, 1000, partitions)
            digests = member.client.ask("digests", "orders", b"0" * 16, partitions)
            return header[3:], digests[0][2:], digests[1]

        before = read()
        index = agent._view._index
        eventually(
            lambda: index._stored.runs and not index._memory.tables, "the rows are on scratch"
        )
        assert read() == before
        assert agent._view.digest("orders", b"0" * 16, Partitions(frozenset({1}), 271))
        added = msgpack.packb(
            ["orders", hazelcast_key(501), *entry("", "w", member.order(501))[2:]]
        )
        assert member.client.ask("append", member.session, 501, 1, payload=added)[0][0] == "ack"
        header, _ = member.client.ask("keys", "orders", None, 1000)
        assert header[3] == 501
