"""Archives are sorted by key. A reader that needs the order of the log gets it."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imap_wal import format
from imap_wal import log as wal_log
from imap_wal.context import Context
from imap_wal.entry import KEY, clear_of, is_clear, pack
from imap_wal.errors import CorruptLog, StorageUnavailable
from imap_wal.format import Position
from imap_wal.log import LogReader
from imap_wal.parquet import archive_rows, log_order, salvage
from imap_wal.parquet.columns import to_positions, to_rows
from imap_wal.parquet.file import ROWS
from imap_wal.parquet.reader import batches
from imap_wal.parquet.scratch import Scratch
from imap_wal.read import parquet_scan
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.retention import archive_writer
from imap_wal.settings import Settings
from storage_backends.memory import MemoryStore, forget
from tests.histories import put
from tests.kit.effort import share
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.rewrites import archive

_numbers = itertools.count()


def test_an_archive_is_sorted_by_key_and_then_by_position(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_rows, "GROUP_ROWS", 8)
    log = node(memory)
    for number in range(60):
        append(log, put(f"k{number * 7 % 20:02d}", number, (1, 1, 1, number)))
    archive(memory, log)
    (item,) = log.manifests.read()[1].archives
    read = list(batches(Context(memory), item.path))
    keys = [row[KEY] for batch in read for row in to_rows(batch)]
    places = [place for batch in read for place in to_positions(batch)]
    assert list(zip(keys, places, strict=True)) == sorted(zip(keys, places, strict=True))
    assert (item.first, item.last) == (min(places), max(places)) and item.records == 60
    footer = pq.ParquetFile(io.BytesIO(memory.read(item.path))).metadata
    assert footer.metadata[ROWS] == b"60 by key" and item.unpacked > 0
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    assert [group.num_rows for group in groups] == [8] * 7 + [4]
    column = footer.schema.names.index("key")
    ends = [(each.min, each.max) for each in (g.column(column).statistics for g in groups)]
    assert ends[0][0] == b"k00" and ends[-1][1] == b"k19"
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))


def test_a_large_run_writes_several_files_with_positions_apart(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_writer, "FULL", 2000)
    monkeypatch.setattr(archive_rows, "DECODED_BYTES", 500)
    monkeypatch.setattr(archive_writer, "BATCH_ROWS", 5)
    log = node(memory)
    for number in range(100):
        append(log, put(f"k{number % 9}", number, (1, 1, 1, number), f"map {number % 2}"))
    archive(memory, log)
    archives = log.manifests.read()[1].archives
    assert len(archives) >= 6 and sum(each.records for each in archives) == 100
    for name in ("map 0", "map 1"):
        own = sorted((each for each in archives if each.map == name), key=lambda each: each.first)
        assert all(a.last < b.first for a, b in itertools.pairwise(own))
        assert all(each.unpacked < 4000 for each in own)
    monkeypatch.setattr(archive_writer, "ABSORB_MAX", 2)
    append(log, put("new", "1", (1, 1, 1, 100), "map 0"))
    archive(memory, log)
    full = [each for each in archives if each.unpacked >= 1000 or each.map == "map 1"]
    left = log.manifests.read()[1].archives
    assert set(full) <= set(left) and len(left) <= len(archives) + 1, "full files are not absorbed"


actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3), st.integers(0, 5), st.integers(1, 4)),
        st.tuples(st.just("archive"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("rotate"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=50,
)


@settings(
    deadline=None,
    max_examples=share(100),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=actions, full=st.sampled_from((300, 1500, 10**6)), start=st.integers(0, 200))
def test_readers_get_log_order_from_archives(
    monkeypatch: pytest.MonkeyPatch, history: list[Any], full: int, start: int
) -> None:
    monkeypatch.setattr(archive_writer, "FULL", full)
    monkeypatch.setattr(archive_writer, "ABSORB_MAX", 3)
    monkeypatch.setattr(archive_writer, "BATCH_ROWS", 3)
    monkeypatch.setattr(archive_rows, "DECODED_BYTES", 400)
    monkeypatch.setattr(archive_rows, "KEPT_BYTES", 150)
    monkeypatch.setattr(archive_rows, "WAITING_BYTES", 1000)
    monkeypatch.setattr(archive_rows, "GROUP_ROWS", 3)
    monkeypatch.setattr(log_order, "PAGE_BYTES", 300)
    monkeypatch.setattr(log_order, "SORTED_BYTES", 500)
    name = f"by-key-{next(_numbers)}"
    store = MemoryStore(name)
    expected: list[tuple[Position, str, bytes | None, bytes | None]] = []
    newest: dict[str, dict[bytes | None, bytes | None]] = {}
    with wal_log.create("memory://", storage=store, segment_bytes=4096) as opened:
        for kind, of, key, count in history:
            if kind == "put":
                changes = [
                    (b"k%d" % (key + at), b"%d" % len(expected) if key + at else None)
                    for at in range(count)
                ]
                opened.append(f"map {of}", *changes)
                known = len(expected)
                for record in itertools.islice(
                    opened.read(expected[-1][0].after() if expected else None), count
                ):
                    entry = record.entry
                    expected.append((record.position, entry.map, entry.key, entry.value))
                    newest.setdefault(entry.map, {})[entry.key] = entry.value
                assert len(expected) == known + count
            elif kind == "archive":
                opened.archive()
            else:
                opened.rotate()
        reader = LogReader("memory://", storage=store)
        found = [(each.position, *each.entry[:2], each.entry.value) for each in reader.read()]
        assert found == expected
        at = start % (len(expected) + 1)
        if at < len(expected):
            rest = [each.position for each in reader.read(expected[at][0])]
            assert rest == [place for place, *_ in expected[at:]]
    forget(name)


def test_many_archives_are_sorted_one_after_the_other(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of many archives has the rows of one in memory, and pages of the others."""
    monkeypatch.setattr(log_order, "PAGE_BYTES", 1000)
    monkeypatch.setattr(log_order, "SORTED_BYTES", 2000)
    held: list[int] = []
    add = Scratch.add

    def measured(scratch: Any, *rest: Any, **options: Any) -> None:
        add(scratch, *rest, **options)
        waiting = [each for pages in scratch._held.values() for _, each in pages]
        held.append(sum(each.nbytes for each in waiting if not isinstance(each, tuple)))

    with wal_log.create("memory://", storage=memory) as opened:
        for number in range(400):
            opened.append(f"map {number % 8}", (b"k%d" % (number * 7 % 50), bytes(100)))
        before = list(opened.read())
        opened.archive()
        monkeypatch.setattr(Scratch, "add", measured)
        assert list(opened.read()) == before
    assert max(held) <= log_order.SORTED_BYTES


def test_a_file_whose_order_is_unknown_is_damaged(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imap_wal.parquet.file.BY_KEY", b" by value")
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    archive(memory, log)
    monkeypatch.undo()
    with pytest.raises(CorruptLog, match="has 1 rows, but its metadata has 1 by value"):
        view(memory)


@pytest.mark.parametrize("footer", ["by key", "by kex"])
def test_salvaged_rows_keep_their_order_whatever_the_footer_says(
    memory: MemoryStore, footer: str
) -> None:
    log = node(memory)
    rows = [put(f"k{9 - number}", number, (1, 1, 1, number)) for number in range(10)]
    append(log, *rows, frames=5)
    archive(memory, log)
    (item,) = log.manifests.read()[1].archives
    data = memory.read(item.path)
    memory.delete(item.path)
    memory.create(item.path, data.replace(b"10 by key", b"10 " + footer.encode()))
    salvage.rewrite_file(Context(memory), item.path, memory, "salvaged", log="")
    read = list(batches(Context(memory), "salvaged", by_position=True))
    places = [place for batch in read for place in to_positions(batch)]
    assert len(places) == 10 and places == sorted(places)


def test_a_full_scratch_folder_is_no_damage(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node(memory)
    append(log, put("b", "1", (1, 1, 1, 1)), put("a", "2", (1, 1, 1, 2)))
    archive(memory, log)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Scratch, "add", full)
    (scan,) = cluster_scans(cluster(memory).state())
    with pytest.raises(StorageUnavailable, match="No space left"):
        list(read_scan(Context(memory), scan, positions=True))
    assert values(view(memory)) == {"a": "2", "b": "1"}, "a merge needs no order"


def test_marks_within_an_archive_count_whatever_its_order(memory: MemoryStore) -> None:
    """`since` and `until` are positions of the log, not places in the file."""
    log = node(memory, settings=Settings(preallocate=False))
    rows = [put(f"k{9 - number}", number, (1, 1, 1, number)) for number in range(10)]
    append(log, *rows, frames=5)
    archive(memory, log)
    everything = [
        (place, row)
        for batch in cluster(memory).changes(positions=True)
        for place, row in zip(batch.positions or [], batch.rows, strict=True)
    ]
    assert [place for place, _ in everything] == sorted(place for place, _ in everything)
    since, until = everything[2][0], everything[6][0]
    scans = cluster_scans(cluster(memory).state(), since={"n1": since}, until={"n1": until})
    (batch,) = parquet_scan.read_archive(Context(memory), scans[0])
    assert sorted(batch.rows) == sorted(row for _, row in everything[3:7])
    assert batch.first <= everything[3][0] and batch.last >= until


def test_row_groups_without_a_wanted_key_are_not_read(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_rows, "GROUP_ROWS", 10)
    log = node(memory)
    for number in range(100):
        append(log, put(f"k{number:02d}", number, (1, 1, 1, number)))
    cleared = clear_of("orders", 1, 3, 1000, (1, 1, 1, 101))
    log.write(format.CLEARS, 1, [pack(cleared)])
    log.sync()
    archive(memory, log)
    (scan,) = cluster_scans(cluster(memory).state())
    for wanted, groups in (((b"k33",), 2), ((b"k33", b"k95"), 3), ((b"none",), 1), ((), 1)):
        found = [
            row
            for batch in read_scan(Context(memory), replace(scan, keys=frozenset(wanted)))
            for row in batch.rows
        ]
        assert len(found) in (10 * groups, 10 * groups - 9)
        assert {each for each in wanted if each != b"none"} <= {row[KEY] for row in found}
        assert any(is_clear(row) for row in found), "a clear may delete any key"
    memory.delete(scan.path)
    memory.create(scan.path, b"x" * scan.bytes)
    with pytest.raises(CorruptLog):
        list(read_scan(Context(memory), replace(scan, keys=frozenset())))
