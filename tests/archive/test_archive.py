"""Archives are Parquet that any program can read; a crash at any point loses nothing."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

from imap_wal.context import Context
from imap_wal.entry import DELETED, EXPIRES_AT_MS, Row
from imap_wal.errors import CorruptLog, ShortLog
from imap_wal.format import Position
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.parquet import archive_rows
from imap_wal.parquet.columns import ARCHIVE_SCHEMA, to_batch, to_positions, to_rows
from imap_wal.parquet.scratch import Scratch
from imap_wal.read.file_scan import Scope
from imap_wal.read.scan import read_scan
from imap_wal.read.view import MaterializedView
from imap_wal.retention import archive_writer
from imap_wal.retention.archive import archive_sealed
from storage_backends import SegmentStore, StorageError, Unavailable, open_store
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.effort import thorough
from tests.kit.logs import SMALL, append, cluster, node, values, view
from tests.support import copy_files, overwrite, segments


def test_duckdb_and_pandas_read_an_archive_directly(tmp_path: Path) -> None:
    """DuckDB and pandas read an archive without imap-wal."""
    store = open_store(str(tmp_path))
    log = node(store)
    append(log, put("a", "1", (1, 2, 3, 4), timestamp_ms=5), put("b", "2", (1, 2, 3, 5), "other"))
    append(log, put("a", None, (1, 2, 3, 6), timestamp_ms=7))
    log.close()
    archive_sealed(Context(store), log.identity.node_folder, "n1", log.manifests)
    files = sorted(str(path) for path in tmp_path.rglob("*.parquet"))
    assert len(files) == 2 and not segments(store)

    found = duckdb.execute(
        "SELECT map, key, value, deleted, request, node, epoch, segment, index FROM "
        f"read_parquet({files!r}) ORDER BY request"
    ).fetchall()
    assert found == [
        ("orders", b"a", b"1", False, 4, "n1", 1, 1, 0),
        ("other", b"b", b"2", False, 5, "n1", 1, 1, 1),
        ("orders", b"a", None, True, 6, "n1", 1, 1, 0),
    ]
    newest = duckdb.execute(
        "SELECT key, arg_max(deleted, (incarnation, partition_version, session, request)) "
        f"FROM read_parquet({files!r}) WHERE map = 'orders' GROUP BY key"
    )
    assert newest.fetchall() == [(b"a", True)]

    import pandas as pd  # takes too long to import for each collection of tests

    frame = pd.concat([pd.read_parquet(file) for file in files])
    assert sorted(frame["timestamp_ms"]) == [5, 7, 1000]
    assert [field.name for field in ARCHIVE_SCHEMA] == list(frame.columns)
    compression = duckdb.execute(
        f"SELECT DISTINCT compression FROM parquet_metadata({files!r})"
    ).fetchall()
    assert compression == [("ZSTD",)]


def test_rows_are_read_from_parquet_as_they_were_written(seed: int) -> None:
    random_ = random.Random(seed)
    rows: list[Row] = [
        (
            random_.choice(("a", "b", "ü")),
            random_.randbytes(random_.randrange(5)),
            random_.choice(("", "K")),
            random_.choice((None, b"", random_.randbytes(20))),
            "V",
            random_.random() < 0.5,
            random_.randrange(-(2**62), 2**62),
            random_.randrange(2**40),
            random_.randrange(1000),
            (random_.randrange(2**40), 0, random_.randrange(9), random_.randrange(2**62)),
        )
        for _ in range(100)
    ]
    rows = [
        (*row[:7], 0 if row[DELETED] else row[EXPIRES_AT_MS], *row[8:]) for row in rows
    ]  # a tombstone does not expire
    positions = [Position(1, 2, number, number % 3) for number in range(100)]
    batch = to_batch(rows, "n1", positions)
    assert to_rows(batch) == rows and to_positions(batch) == positions
    assert (
        to_rows(batch.slice(33, 20)) == rows[33:53]
        and to_positions(batch.slice(33, 20)) == positions[33:53]
    )
    assert to_rows(to_batch([], "n1")) == []


def test_the_segment_being_written_is_not_archived(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.rotate()
    append(log, put("a", "2", (1, 1, 1, 2)))
    done = archive_sealed(
        Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
    )
    assert (done.segments, done.records) == (1, 1) and len(segments(memory)) == 1
    append(log, put("b", "1", (1, 1, 1, 3)))
    assert values(view(memory)) == {"a": "2", "b": "1"}
    assert (
        archive_sealed(
            Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
        ).segments
        == 0
    )


@pytest.mark.parametrize("operation", ["create", "create_from", "delete"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_crash_during_archive_loses_nothing(
    memory: MemoryStore, operation: str, after: int
) -> None:
    """A crash at any point loses nothing, and the next run cleans up."""
    log = node(memory)
    for number in range(3):
        append(
            log,
            put("a", number, (1, 1, 7, number + 1)),
            put(f"k{number}", "x", (1, 1, 7, 10 + number), "other"),
        )
        log.rotate()
    log.close(clean=False)
    dying: Any = Dying(memory, operation, after)
    with pytest.raises(StorageError):
        archive_sealed(
            Context(dying), log.identity.node_folder, "n1", cluster_node_manifests(dying)
        )
        raise Unavailable("nothing more to do")
    left = copy_files(memory)
    assert values(view(left)) == {"a": "2"} and len(values(view(left), "other")) == 3
    again = node(left)
    assert again.requests == {7: 12}, (
        "the sessions' requests are known with or without the segments"
    )
    again.close()
    archive_sealed(Context(left), log.identity.node_folder, "n1", again.manifests)
    known = {item.path for item in again.manifests.read()[1].archives}
    assert {
        file.path for file in left.list("") if file.path.endswith(".parquet")
    } == known and not segments(left)
    assert values(view(left)) == {"a": "2"} and len(values(view(left), "other")) == 3


def test_damaged_sealed_segment_stops_the_archive_run(
    memory: MemoryStore,
) -> None:
    """Damage in a sealed segment stops the run before anything changes."""
    log = node(memory)
    for number in range(2):
        append(log, put("a", number, (1, 1, 1, number)))
        log.rotate()
    path = segments(memory)[0]
    data = bytearray(memory.read(path))
    data[-1] ^= 1
    overwrite(memory, path, bytes(data))
    before = [(file.path, file.size) for file in memory.list("")]
    with pytest.raises(CorruptLog):
        archive_sealed(
            Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
        )
    assert [(file.path, file.size) for file in memory.list("")] == before


def test_rows_of_many_maps_wait_on_disk(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_rows, "WAITING_BYTES", 0)
    monkeypatch.setattr(archive_rows, "DECODED_BYTES", 1)
    log = node(memory)
    for number in range(20):
        append(log, put("a", number, (1, 1, 1, number), f"map {number % 10}"))
    log.close()
    done = archive_sealed(Context(memory), log.identity.node_folder, "n1", log.manifests)
    assert done.records == 20 and len(done.archives) == 10
    made = view(memory)
    assert {name: values(made, name)["a"] for name in made.maps()} == {
        f"map {number}": str(number + 10) for number in range(10)
    }


@thorough
@pytest.mark.parametrize("kept_bytes", [pytest.param(0, marks=thorough), 256 * 1024])
def test_thousand_maps_are_archived_in_one_bounded_pass(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    """A thousand maps are archived with one pass over the segments, in bounded memory."""
    monkeypatch.setattr(archive_rows, "WAITING_BYTES", 64 * 1024)
    monkeypatch.setattr(archive_rows, "DECODED_BYTES", 16 * 1024)
    monkeypatch.setattr(archive_rows, "KEPT_BYTES", kept_bytes)
    held: list[int] = []
    read: list[str] = []
    add, calls = Scratch.add, itertools.count()

    def counted(context: Context, scan: Any, *rest: Any, **options: Any) -> Any:
        read.append(scan.path)
        return read_scan(context, scan, *rest, **options)

    def measured(scratch: Any, *rest: Any, **options: Any) -> None:
        add(scratch, *rest, **options)
        if next(calls) % 50 == 0:  # it takes long
            waiting = [each for batches in scratch._held.values() for _, each in batches]
            held.append(sum(each.nbytes for each in waiting if not isinstance(each, tuple)))

    monkeypatch.setattr(archive_writer, "read_scan", counted)
    monkeypatch.setattr(Scratch, "add", measured)
    log = node(memory)
    expected: dict[str, dict[str, str]] = {}
    for commit in range(6):
        rows = []
        for number in range(1000):
            request = commit * 1000 + number
            rows.append(put(f"k{commit % 2}", request, (1, 1, 1, request), f"map {number}"))
            expected.setdefault(f"map {number}", {})[f"k{commit % 2}"] = str(request)
        append(log, *rows)
        if commit % 2:
            log.rotate()
    log.close()
    before = segments(memory)
    assert len(before) > 2
    done = archive_sealed(Context(memory), log.identity.node_folder, "n1", log.manifests)
    assert read == before, "each segment once"
    assert len(done.archives) == 1000
    assert done.records == 6000
    assert bool(max(held)) == (not kept_bytes) and max(held) <= archive_rows.WAITING_BYTES
    assert log.manifests.read()[1].requests == {1: 5999}
    made = view(memory)
    assert {name: values(made, name) for name in made.maps()} == expected


def test_row_groups_are_bounded(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    import pyarrow.parquet as pq

    monkeypatch.setattr(archive_rows, "GROUP_ROWS", 100)
    log = node(memory)
    for number in range(50):
        append(log, *(put(f"k{index}", "x", (1, 1, 1, number * 10 + index)) for index in range(10)))
    log.close()
    (item,) = archive_sealed(
        Context(memory), log.identity.node_folder, "n1", log.manifests
    ).archives
    metadata = pq.ParquetFile(io.BytesIO(memory.read(item.path))).metadata
    assert metadata.num_row_groups > 1 and metadata.num_rows == 500
    # reading from the middle
    middle = [
        place
        for changes in cluster(memory).changes(positions=True)
        for place in changes.positions or []
    ]
    since = list(cluster(memory).changes(scope=Scope(since={"n1": middle[249]}), positions=True))
    assert [place for changes in since for place in changes.positions or []] == middle[250:]


def test_a_store_without_append_is_archived_object_by_object(tmp_path: Path) -> None:
    store = open_store(f"objects+file://{tmp_path}")
    log = node(store)
    for number in range(5):
        append(log, put("a", number, (1, 1, 1, number)))
    made = MaterializedView(cluster(store), SMALL)
    made.catch_up()
    assert values(made) == {"a": "4"} and len(segments(store)) == 5
    done = archive_sealed(
        Context(store), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
    )
    assert done.segments == 5 and done.records == 5
    append(log, put("a", "new", (1, 1, 1, 9)))
    made.catch_up()
    assert values(made) == {"a": "new"}
    log.close()


def cluster_node_manifests(store: SegmentStore) -> ManifestLog[NodeManifest]:
    from imap_wal.clock import SeededRandomness
    from imap_wal.manifest.node import NodeManifestLog
    from tests.support import FakeClock

    return NodeManifestLog(
        Context(store, clock=FakeClock(), randomness=SeededRandomness(3)), "ns/c/nodes/n1"
    )


class Dying:
    """A store whose process dies at an operation: that one and all later ones fail."""

    def __init__(self, inner: MemoryStore, operation: str, after: int) -> None:
        self._inner, self._operation, self._left = inner, operation, after
        self._dead = False

    def __getattr__(self, name: str) -> object:
        if name == self._operation and not self._dead:
            self._left -= 1
            self._dead = self._left < 0
        if self._dead:
            raise Unavailable("killed")
        return getattr(self._inner, name)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_archive_run_does_not_hide_a_missing_segment(memory: MemoryStore, number: int) -> None:
    """Its archives would be above it, so nothing would miss it any more."""
    log = node(memory)
    for each in range(4):
        append(log, put(f"k{each}", "1", (1, 1, 1, each)))
        log.rotate()
    lost = segments(memory)[number]
    content = memory.read(lost)
    memory.delete(lost)
    folder = log.identity.node_folder
    with pytest.raises((ShortLog, CorruptLog)):
        archive_sealed(Context(memory), folder, "n1", log.manifests, writing=log.unsealed)
    memory.create(lost, content)
    done = archive_sealed(Context(memory), folder, "n1", log.manifests, writing=log.unsealed)
    assert done.records == 4
    assert values(view(memory)) == {f"k{each}": "1" for each in range(4)}
