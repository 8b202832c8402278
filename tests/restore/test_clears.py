"""A clear: one entry that deletes all keys of a partition, for every reader."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from imap_wal import entry, format
from imap_wal.context import Context
from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    ORDER,
    PARTITION,
    VALUE,
    Row,
    clear_of,
    is_clear,
)
from imap_wal.errors import ImapWalError, UnsupportedVersion
from imap_wal.format import Position
from imap_wal.parquet.columns import to_rows
from imap_wal.parquet.reader import batches
from imap_wal.partitions import partition_id, partition_number
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import snapshot_scans
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.rules import cleared
from imap_wal.rules.cleared import Floors
from imap_wal.segment.reader import SegmentReader
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import SMALL, append, cluster, node, values, view
from tests.support import contents, embedded, segments

ENGINE = LocalEngine(SMALL)
HEAD = "\0" * 8
"""The first bytes of a Hazelcast key: no partition hash, no serializer."""


def clear(
    order: tuple[int, int, int, int],
    partition: int = 0,
    count: int = 1,
    name: str = "orders",
    timestamp_ms: int = 1000,
) -> Row:
    return clear_of(name, partition, count, timestamp_ms, order)


def append_clear(log: NodeLog, *rows: Row) -> None:
    log.write(format.CLEARS, len(rows), [entry.pack(row) for row in rows])
    log.sync()


def rows_of(store: SegmentStore) -> list[Row]:
    """The rows in the snapshots of a cluster."""
    log = cluster(store)
    return [
        row
        for name, snapshot in log.manifest().snapshots.items()
        for scan in snapshot_scans(name, snapshot)
        for changes in read_scan(Context(store), scan)
        for row in changes.rows
    ]


# ---- what is hidden ----


def test_clear_hides_only_older_entries_of_its_partition(memory: MemoryStore) -> None:
    log = node(memory)
    keys = [f"{HEAD}key-{number}" for number in range(40)]
    append(log, *(put(key, "old", (1, 1, 1, number)) for number, key in enumerate(keys, 1)))
    append(log, put(keys[0], "of another map", (1, 1, 1, 50), "other"))
    append_clear(log, clear((1, 1, 1, 60), 2, 5))
    there = {key for key in keys if partition_id(key.encode(), 5) != 2}
    assert 0 < len(there) < len(keys)
    assert values(view(memory)) == dict.fromkeys(there, "old")
    assert values(view(memory), "other") == {keys[0]: "of another map"}
    gone = next(key for key in keys if key not in there)
    append(log, put(gone, "new", (1, 1, 1, 61)))
    made = view(memory)
    assert values(made) == {**dict.fromkeys(there, "old"), gone: "new"}
    assert sorted(key for page in made.keys("orders", 3) for key in page) == sorted(
        key.encode() for key in (*there, gone)
    )


def test_late_change_with_lower_order_stays_cleared(
    memory: MemoryStore,
) -> None:
    """A late change with a lower order is hidden in any order of reading."""
    first, second = node(memory), node(memory, "n2")
    append_clear(second, clear((1, 2, 1, 1)))
    made = view(memory)
    append(first, put("a", "late", (1, 1, 7, 9)))
    append(second, put("b", "newer", (1, 2, 1, 2)))
    made.catch_up()
    assert values(made) == values(view(memory)) == {"b": "newer"}


def test_clear_uses_the_partition_count_of_its_writer() -> None:
    floors = Floors()
    keys = [random.Random(number).randbytes(20) for number in range(200)]
    floors.add(clear((2, 1, 1, 1), 3, 7), "n1")
    floors.add(clear((3, 1, 1, 1), 5, 11), "n1")
    hidden = floors.hidden(keys, [(1, 9, 9, 9)] * 100 + [(2, 9, 9, 9)] * 100)
    assert hidden == {
        index
        for index, key in enumerate(keys)
        if partition_id(key, 11) == 5 or (index < 100 and partition_id(key, 7) == 3)
    }


def test_key_is_hashed_once_per_lookup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key is hashed once for a lookup, with any number of partition counts."""
    floors = Floors()
    for count in range(2, 60):
        floors.add(clear((2, 1, 1, count), count // 2, count), "n1")
    hashed: list[bytes] = []

    def counted(key: bytes) -> int:
        hashed.append(key)
        return partition_number(key)

    monkeypatch.setattr(cleared, "partition_number", counted)
    keys = [b"%08d%d" % (0, number) for number in range(50)]
    found = floors.hidden(keys, [(1, 1, 1, 1)] * 50)
    assert sorted(hashed) == sorted(keys)
    assert found == {
        index
        for index, key in enumerate(keys)
        if any(partition_id(key, count) == count // 2 for count in range(2, 60))
    }


def test_too_many_partition_counts_of_clears_are_refused() -> None:
    """Clears with too many different partition counts are refused. With 20,000 counts, a lookup of
    64 keys took 12 seconds."""
    index = NewestIndex(1 << 30)
    index.add(
        "n1",
        [clear((1, 1, 1, count), 0, count) for count in range(1, cleared.COUNTS_MAX + 1)],
        clears=True,
    )
    index.add("n1", [clear((1, 1, 2, 1), 0, 7), clear((1, 1, 2, 2), 0, 1000, "other")], clears=True)
    with pytest.raises(
        ImapWalError,
        match=r"map 'orders': a clear of node 'n2', order \(1, 1, 3, 1\), is for one of 1000 "
        r"partitions",
    ):
        index.add("n2", [clear((1, 1, 3, 1), 0, 1000)], clears=True)


def some_history(random_: random.Random) -> list[tuple[str, Row]]:
    """Entries of three nodes, some of them clears, in any order."""
    everything: list[tuple[str, Row]] = []
    for request in range(random_.randrange(1, 400)):
        place = f"n{random_.randrange(3)}"
        order = (1, random_.randrange(1, 12), 1, request)
        if random_.random() < 0.03:
            everything.append((place, clear(order, random_.randrange(3), 3)))
        else:
            key = f"{HEAD}k{random_.randrange(25)}"
            value = None if random_.random() < 0.2 else request
            everything.append((place, put(key, value, order)))
    random_.shuffle(everything)
    return everything


def newest_by_definition(everything: list[tuple[str, Row]]) -> dict[bytes, Row]:
    """The newest entry of each key that no clear has deleted."""
    clears = [row for _, row in everything if is_clear(row)]
    left: dict[bytes, list[tuple[str, Row]]] = {}
    for place, row in everything:
        if not is_clear(row) and not any(
            each[PARTITION] == partition_id(row[KEY], 3) and row[ORDER] < each[ORDER]
            for each in clears
        ):
            left.setdefault(row[KEY], []).append((place, row))
    expected: dict[bytes, Row] = {}
    for key, rows in left.items():
        top = max(row[ORDER][:2] for _, row in rows)
        newest = {
            place: row
            for place, row in sorted(rows, key=lambda claim: claim[1][9])
            if row[ORDER][:2] == top
        }
        expected[key] = min(newest.items(), key=lambda claim: (claim[1][5], claim[0]))[1]
    return expected


@pytest.mark.parametrize("memory_bytes", [1 << 30, 30_000, 1])
def test_index_with_clears_equals_its_definition(
    memory_bytes: int, seed: int, tmp_path: Path
) -> None:
    """An index with clears equals its definition, in any order and on scratch. Also where two nodes
    claim a key: a claim that was cleared is none."""
    random_ = random.Random(seed)
    for _ in range(10):
        everything = some_history(random_)
        index = NewestIndex(memory_bytes, tmp_path)
        for start in range(0, len(everything), 40):
            for place in ("n0", "n1", "n2"):
                index.add(
                    place,
                    [row for of, row in everything[start : start + 40] if of == place],
                    clears=True,
                )
        clears = [row for _, row in everything if is_clear(row)]
        expected = newest_by_definition(everything)
        assert {row[KEY]: row for rows in index.batches("orders", 7) for row in rows} == expected
        assert {key: deleted for page in index.keys("orders", 7) for key, deleted, _ in page} == {
            key: row[DELETED] for key, row in expected.items()
        }
        keys = [HEAD.encode() + b"k%d" % number for number in range(26)]
        assert index.get("orders", keys) == [expected.get(key) for key in keys]
        newest_clears = {
            partition: max(row[ORDER] for row in clears if row[PARTITION] == partition)
            for partition in {row[PARTITION] for row in clears}
        }
        assert {row[PARTITION]: row[ORDER] for row, _ in index.clears("orders")} == newest_clears
        index.close()


def test_repeatedly_cleared_map_uses_space_of_one_filling() -> None:
    """A map that is filled and cleared many times takes the space of one filling."""
    index = NewestIndex(3_000_000)
    for round_ in range(1, 30):
        for start in range(0, 1000, 100):
            index.add(
                "n1",
                [
                    put(f"{HEAD}{round_}-{number}", "v" * 100, (1, round_, 1, number))
                    for number in range(start, start + 100)
                ],
            )
        index.add("n1", [clear((1, round_, 2, 1))], clears=True)
    assert not index.overflowed
    assert index.count("orders") < 10_000
    assert list(index.batches("orders")) == []


# ---- on storage ----


def test_older_version_refuses_frames_with_a_clear(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames with a clear are refused by a version that does not know them."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    append_clear(log, clear((1, 1, 1, 2)))
    monkeypatch.setattr(
        format,
        "TYPES",
        {kind: text for kind, text in format.TYPES.items() if kind != format.CLEARS},
    )
    with pytest.raises(UnsupportedVersion, match="unknown type 5"):
        list(SegmentReader(memory, segments(memory)[0]).whole_frames())
    with pytest.raises(UnsupportedVersion, match="unknown type 5"):
        view(memory)


def test_an_empty_key_is_no_clear(memory: MemoryStore) -> None:
    log = node(memory)
    append(
        log, put("", "1", (1, 1, 1, 1)), put("a", "1", (1, 1, 1, 2)), put("", None, (1, 1, 1, 3))
    )
    append_clear(log, clear((1, 1, 1, 4), 1, 3), clear((1, 1, 1, 5), 2, 3))
    log.rotate()
    archive_sealed(
        Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
    )
    (archive,) = log.manifests.read()[1].archives
    found = [row for batch in batches(Context(memory), archive.path) for row in to_rows(batch)]
    assert [(row[KEY], is_clear(row)) for row in found] == [
        (b"", False),
        (b"", False),
        (None, True),
        (None, True),
        (b"a", False),
    ]
    assert [(row[EXPIRES_AT_MS], row[PARTITION]) for row in found[2:4]] == [(3, 1), (3, 2)]
    assert archive.tombstones == 3


def test_clear_is_read_in_place_from_segments_and_archives(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    append_clear(log, clear((1, 1, 1, 2)), put("a", "2", (1, 1, 1, 3)))

    def read() -> list[tuple[Position, bool]]:
        found = cluster(memory).changes(positions=True)
        return [
            (place, is_clear(row))
            for changes in found
            for row, place in zip(changes.rows, changes.positions or (), strict=True)
        ]

    before = read()
    assert [is_a_clear for _, is_a_clear in before] == [False, True, False]
    log.rotate()
    archive_sealed(
        Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
    )
    assert read() == before


# ---- rewrites ----


def test_a_rewrite_drops_a_clear_with_what_it_hides(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    append_clear(log, clear((1, 1, 1, 3)))
    append(log, put("b", "2", (1, 1, 1, 4)))
    rewrite(cluster(memory), ENGINE)
    assert [(row[KEY], row[VALUE]) for row in rows_of(memory)] == [(b"b", b"2")]
    assert not cluster(memory).manifest().clears
    assert values(view(memory)) == {"b": "2"}


def test_clear_after_the_first_look_is_kept(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clear that is logged after the first look is kept until the next rewrite."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    logs = cluster(memory)
    looks = ClusterLog.ends

    def ends(self: ClusterLog, since: dict[str, Position] | None = None) -> dict[str, Position]:
        if since is not None:
            append_clear(log, clear((1, 1, 1, 2)))
        return looks(self, since)

    with monkeypatch.context() as patched:
        patched.setattr(ClusterLog, "ends", ends)
        rewrite(logs, ENGINE)
    snapshot = cluster(memory).manifest().snapshots["orders"]
    assert (snapshot.live, snapshot.tombstones, [is_clear(row) for row in rows_of(memory)]) == (
        0,
        1,
        [True],
    )
    assert values(view(memory)) == {}
    log.close()
    prune(cluster(memory))
    rewrite(cluster(memory), ENGINE)
    assert rows_of(memory) == []
    assert values(view(memory)) == {}


def test_clear_is_kept_while_another_store_may_append(
    memory: MemoryStore,
) -> None:
    """A clear is kept while another embedded store may append something older."""
    first, second = node(memory), node(memory, "n2")
    append(first, put("a", "1", (1, 0, 1, 1)))
    append_clear(second, clear((2, 0, 1, 1)))
    rewrite(cluster(memory), ENGINE)
    prune(cluster(memory))
    append(first, put("b", "older", (1, 0, 1, 2)))
    assert values(view(memory)) == {}
    first.close()
    rewrite(cluster(memory), ENGINE)
    assert rows_of(memory) == []


def test_snapshot_keeps_the_newer_clear_of_a_partition(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    append_clear(first, clear((1, 0, 1, 1)), clear((1, 0, 1, 2), 1, 2))
    append_clear(second, clear((2, 0, 1, 1)))
    rewrite(cluster(memory), ENGINE)
    assert [(row[EXPIRES_AT_MS], row[PARTITION], row[ORDER]) for row in rows_of(memory)] == [
        (1, 0, (2, 0, 1, 1)),
        (2, 1, (1, 0, 1, 2)),
    ]


# ---- the embedded map ----


def test_clear_of_an_embedded_map_is_one_entry(memory: MemoryStore) -> None:
    store = embedded(memory)
    items = store.map("m")
    items.update({number: number for number in range(500)})
    store.map("other")["kept"] = 1
    before = store.statistics.commits
    items.clear()
    after = store.statistics.commits
    assert (after.records - before.records, after.commits - before.commits) == (1, 1)
    items.clear()
    assert store.statistics.commits.records == after.records, "nothing to clear, nothing to log"
    items[7] = "again"
    assert dict(items) == contents(memory) == {7: "again"}
    store.archive()
    assert contents(memory) == {7: "again"} and contents(memory, "other") == {"kept": 1}


def test_clear_of_a_shared_store_keeps_unknown_entries(memory: MemoryStore) -> None:
    import imap_wal

    options: dict[str, Any] = {
        "storage": memory, "preallocate": False, "segment_bytes": 64 * 1024, "shared": True,
    }  # fmt: skip
    with (
        imap_wal.open(memory.url, node="n1", **options) as one,
        imap_wal.open(memory.url, node="n2", **options) as two,
    ):
        two.map("m")["cleared"] = 1
        one.map("m")["before"] = 1
        two.map("m").clear()
        one.map("m")["after"] = 1
    assert contents(memory) == {"before": 1, "after": 1}
