"""A view reads each log once, and follows what is appended, archived, rewritten and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from imap_wal.context import Context
from imap_wal.entry import KEY, MAP, ORDER, Row
from imap_wal.format import Position
from imap_wal.read.file_scan import Scope
from imap_wal.read.view import MaterializedView
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from imap_wal.write.node_log import NodeLog
from storage_backends import StorageError, open_store
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.hooked import Hooked
from tests.kit.logs import SMALL, append, cluster, node, values, view
from tests.support import segments


def test_later_calls_read_only_what_was_appended(memory: MemoryStore) -> None:
    store = Hooked(memory)
    log = node(memory, settings=Settings(preallocate=True, segment_bytes=1 << 20))
    append(
        log,
        *(put(f"k{number}", "x" * 1000, (1, 1, 1, number + 1)) for number in range(500)),
        frames=50,
    )
    made = view(store)
    made.catch_up()  # knows the nodes now
    store.bytes_read = 0
    for _ in range(20):
        made.catch_up()
    assert store.bytes_read < 20 * 100, (
        "nothing changed: nothing but the place of the next frame is read"
    )
    append(log, put("k1", "new", (1, 1, 1, 1000)))
    made.catch_up()
    assert values(made)["k1"] == "new" and store.bytes_read < 100_000
    assert made.ends() == {"n1": log.end}


def test_progress_does_not_fall_when_a_merge_continues(memory: MemoryStore) -> None:
    """A merge that failed in the middle continues there, and its progress too."""
    log = node(memory)
    for number in range(100):
        append(log, put(f"k{number}", "x" * 500, (1, 1, 1, number + 1)))
        if number % 10 == 9:
            log.rotate()
    path = segments(memory)[len(segments(memory)) // 2]
    store = FaultyStore(memory, Plan((Fault("error", kind="read", path=path, at=2),)))
    parts: list[float] = []
    made = MaterializedView(
        cluster(store), Settings(), lambda progress: parts.append(progress.part)
    )
    with pytest.raises(StorageError):
        made.catch_up()
    assert 0.2 < parts[-1] < 0.8
    failed = len(parts)
    made.catch_up()
    assert len(parts) > failed
    assert parts == sorted(parts) and parts[-1] == 1.0
    assert len(values(made)) == 100


def test_commit_during_a_look_does_not_scan_preallocated_space(
    memory: MemoryStore,
) -> None:
    """Only a small part of the segment of 16 MiB is read."""
    store = Hooked(memory)
    log = node(memory, settings=Settings(preallocate=True, segment_bytes=16 << 20))
    append(log, put("a", "1", (1, 1, 1, 1)))
    made = view(store)
    made.catch_up()
    (path,) = segments(memory)
    versions = iter(range(3, 100))

    def commit(name: str, data: bytes, offset: int) -> bytes:
        if name == path and offset > 0:
            append(log, put("a", str(number := next(versions)), (1, 1, 1, number)))
        return data

    append(log, put("a", "2", (1, 1, 1, 2)))
    store.on_read, store.bytes_read = commit, 0
    made.catch_up()
    assert next(versions) > 3, "there was a commit during the look"
    assert store.bytes_read < 1 << 20
    store.on_read = lambda name, data, offset: data
    made.catch_up()
    assert made.ends() == {"n1": log.end}


def test_the_view_follows_rotation_archive_new_nodes_rewrite_and_prune(memory: MemoryStore) -> None:
    log = node(memory)
    made = view(memory)
    assert values(made) == {}
    expected = {}
    request = 0

    def write(key: str, value: str | None, to: NodeLog) -> None:
        nonlocal request
        request += 1
        append(to, put(key, value, (1, request, 1, request)))
        expected.pop(key, None)
        if value is not None:
            expected[key] = value

    for round_ in range(3):
        write("a", f"a{round_}", log)
        write(f"b{round_}", "x", log)
        write(f"b{round_ - 1}", None, log)
        log.rotate()
        made.catch_up()
        assert values(made) == expected
        write("c", f"c{round_}", log)
        archive_sealed(
            Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
        )
        other = node(memory, f"m{round_}")
        write("d", f"d{round_}", other)
        made.catch_up()
        assert values(made) == expected
        write("a", None, other)
        other.close()
        rewrite(cluster(memory), LocalEngine(SMALL))
        prune(cluster(memory))
        made.catch_up()
        assert values(made) == expected == values(view(memory))


@pytest.mark.parametrize("pruned", [False, True])
def test_restore_replays_only_entries_after_the_snapshot(memory: MemoryStore, pruned: bool) -> None:
    """Covered parts of the log are not read."""
    log = node(memory)
    for number in range(30):
        append(log, put(f"k{number % 5}", f"old {number}", (1, 1, 1, number + 1)))
    append(log, put("deleted later", "1", (1, 1, 1, 31)))
    log.rotate()
    archive_sealed(
        Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
    )
    append(
        log,
        put("k1", "covered, and in the segment that is being written", (1, 1, 1, 32)),
        put("not rewritten", "1", (1, 1, 1, 33), "other"),
    )
    rewrite(cluster(memory), LocalEngine(SMALL), maps=["orders"])
    append(
        log,
        put("k2", "after", (1, 1, 1, 34)),
        put("deleted later", None, (1, 1, 1, 35)),
        put("k3", "after", (1, 1, 1, 36)),
    )
    if pruned:
        prune(cluster(memory))
    old = [file.path for file in memory.list("") if "/archive/" in file.path]
    assert len(old) == (0 if pruned else 1)
    watched = FaultyStore(memory)
    replayed = [
        row[ORDER][3]
        for changes in cluster(watched).changes()
        for row in changes.rows
        if row[MAP] == "orders"
    ]
    assert sorted(replayed[:6]) == [26, 28, 29, 30, 31, 32], (
        "the newest of every key, from the snapshot"
    )
    assert replayed[6:] == [34, 35, 36]
    made = view(watched)
    assert values(made) == {
        "k0": "old 25",
        "k1": "covered, and in the segment that is being written",
        "k2": "after",
        "k3": "after",
        "k4": "old 29",
    }
    assert values(made, "other") == {"not rewritten": "1"}
    touched = {
        operation.path
        for operation in watched.operations
        if operation.kind in ("read", "open_input", "size")
    }
    assert not touched & set(old), "what the snapshot covers is not opened again"
    assert any("/snapshot/orders/" in path for path in touched)


def test_dropped_map_is_forgotten_by_a_merged_view(
    memory: MemoryStore,
) -> None:
    """The view had merged the map; also if a rewrite followed the drop."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    made = view(memory)
    drop_map(cluster(memory), "orders")
    append(log, put("c", "1", (1, 1, 1, 3)))
    rewrite(cluster(memory), LocalEngine(SMALL))
    made.catch_up()
    assert values(made) == {"c": "1"}


def test_files_removed_during_a_read_restart_the_pass(memory: MemoryStore) -> None:
    """The next pass reads the files that replaced them."""
    log = node(memory)
    for number in range(4):
        append(
            log, put("a", number, (1, 1, 1, number)), put(f"k{number}", "x", (1, 1, 1, 10 + number))
        )
        log.rotate()
    append(log, put("b", "1", (1, 1, 1, 20)))
    store = Hooked(memory)

    def vanish(path: str, data: bytes, offset: int) -> bytes:
        if path.endswith("-00000002.wal"):
            store.on_read = None
            archive_sealed(
                Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
            )
            rewrite(cluster(memory), LocalEngine(SMALL))
            prune(cluster(memory))
        return data

    store.on_read = vanish
    expected = {"a": "3", "b": "1", **{f"k{number}": "x" for number in range(4)}}
    assert values(view(store)) == expected
    store.on_read = None
    for reading in (cluster(store).changes(), cluster(store).changes(positions=True)):
        assert {row[KEY].decode() for changes in reading for row in changes.rows} == set(expected)


def test_view_finds_entries_archived_since_it_was_empty(
    memory: MemoryStore,
) -> None:
    """When the view looked first, the node had no segment."""
    log = node(memory)
    made = view(memory)
    for value in ("1", "2"):
        append(log, put("a", value, (1, 1, 1, int(value))))
        log.rotate()
        archive_sealed(
            Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
        )
        assert segments(memory) == []
        made.catch_up()
        assert values(made) == {"a": value}


def test_changes_continue_in_the_archive_of_a_segment(
    memory: MemoryStore,
) -> None:
    """The segment is archived and deleted while its changes are read."""
    log = node(memory)
    rows = [put(f"k{number}", "x", (1, 1, 1, number)) for number in range(6)]
    for row in rows:
        append(log, row)
        log.rotate()
    found: list[Row] = []
    places: list[Position] = []
    for changes in cluster(memory).changes(positions=True):
        found += changes.rows
        places += changes.positions or []
        if len(found) == 2:
            archive_sealed(
                Context(memory), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
            )
    assert found == rows and places == sorted(places) and len(set(places)) == 6
    since = list(cluster(memory).changes(scope=Scope(since={"n1": places[3]})))
    assert [row for changes in since for row in changes.rows] == rows[4:]


def test_each_object_of_a_log_is_read_once(tmp_path: Path) -> None:
    inner = open_store(f"objects+file://{tmp_path}")
    log = node(inner)
    for number in range(20):
        append(log, put("a", number, (1, 1, 1, number)))
    store = Hooked(inner)
    reads: list[str] = []

    def note(path: str, data: bytes, offset: int) -> bytes:
        reads.append(path)
        return data

    store.on_read = note
    made = view(store)
    assert values(made) == {"a": "19"}
    assert sorted(path for path in reads if path.endswith(".wal")) == segments(inner)
    append(log, put("a", "new", (1, 1, 1, 99)))
    made.catch_up()
    assert values(made) == {"a": "new"}
    log.close()


def test_look_reads_only_the_changed_one_of_fifty_nodes(
    memory: MemoryStore,
) -> None:
    """It asks each node twice whether it has changed."""
    logs = [
        node(memory, f"n{number}", Settings(preallocate=True, segment_bytes=1 << 16))
        for number in range(50)
    ]
    for number, log in enumerate(logs):
        append(log, put(f"k{number}", "old", (1, 1, 1, 1)))
    store = FaultyStore(memory)
    made = view(store)

    def calls() -> int:
        before = len(store.operations)
        made.catch_up()
        return len(store.operations) - before

    assert calls() <= 2 * 50 + 1, "nothing moved"
    append(logs[7], put("k7", "new", (1, 1, 1, 2)))
    after_a_change = calls()
    assert values(made)["k7"] == "new"
    assert after_a_change <= 2 * 50 + 10, "506 before: every manifest and every folder again"
    logs[8].rotate()
    append(logs[8], put("k8", "new", (1, 1, 1, 2)))
    assert calls() <= 2 * 50 + 20 and values(made)["k8"] == "new"


def test_cheap_view_misses_no_earlier_acknowledged_change(
    memory: MemoryStore,
) -> None:
    """Each way in which an acknowledged change can be in a place that the view did not read last
    time."""
    names = ("n1", "n2", "n3")
    logs = {name: node(memory, name) for name in names}
    made = view(memory)
    expected: dict[str, str] = {}
    request = 0

    def write(name: str) -> None:
        nonlocal request
        request += 1
        append(logs[name], put(f"{name}-{request % 3}", str(request), (1, request, 1, request)))
        expected[f"{name}-{request % 3}"] = str(request)

    def archive(name: str) -> None:
        logs[name].rotate()
        archive_sealed(
            Context(memory),
            logs[name].identity.node_folder,
            name,
            logs[name].manifests,
            writing=logs[name].unsealed,
        )

    def reopen(name: str, clean: bool) -> None:
        logs[name].close(clean=clean)
        logs[name] = node(memory, name)

    for name in names:
        for between in (
            lambda: None,
            logs[name].rotate,
            lambda name=name: archive(name),
            lambda name=name: reopen(name, clean=True),
            lambda name=name: reopen(name, clean=False),
            lambda: rewrite(cluster(memory), LocalEngine(SMALL)),
            lambda: prune(cluster(memory)),
        ):
            for once_more in (False, True):
                write(name)
                between()
                if once_more:
                    write(name)
                made.catch_up()
                assert values(made) == expected == values(view(memory))
