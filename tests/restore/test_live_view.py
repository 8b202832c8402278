"""What a restore promises: newest wins without clocks, damage is located, the log is read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal import format
from imap_wal.entry import Row
from imap_wal.errors import CorruptLog, MissingNode, ShortLog
from imap_wal.format import Position
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.read.cluster import pin_cuts
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import RecoveryPolicy, Settings
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore, open_store
from storage_backends.faults import FaultyStore
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import SMALL, append, cluster, node, values, view
from tests.support import FakeClock, copy_files, node_log, overwrite, segments


def test_greater_order_wins_over_clocks_and_reading_order(
    memory: MemoryStore,
) -> None:
    """The greater order wins whatever the clocks and the reading order say."""
    first, second = node(memory), node(memory, "n2")
    append(
        second,
        put("a", "old", (1, 1, 1, 1), timestamp_ms=9_000_000),
        put("b", "new", (1, 2, 1, 2), timestamp_ms=1),
    )
    append(
        first,
        put("a", "new", (1, 2, 1, 1), timestamp_ms=1),
        put("b", "old", (1, 1, 1, 2), timestamp_ms=9_000_000),
    )
    assert values(view(memory)) == {"a": "new", "b": "new"}


def test_a_tombstone_and_an_expired_value_hide_what_is_older(memory: MemoryStore) -> None:
    clock = FakeClock()
    log = node(memory)
    soon = clock.now_ms() + 1000
    append(
        log,
        put("a", "1", (1, 1, 1, 1)),
        put("b", "1", (1, 1, 1, 2)),
        put("a", None, (1, 1, 1, 3)),
        put("b", "2", (1, 1, 1, 4), expires_at_ms=soon),
    )
    assert values(view(memory, clock)) == {"b": "2"}
    clock.advance(0.999)
    assert values(view(memory, clock)) == {"b": "2"}, "time to live is kept to the millisecond"
    clock.advance(0.001)
    made = view(memory, clock)
    assert values(made) == {} and made.maps() == [] and made.load("orders", [b"a", b"b"]) == []
    assert made.statistics.tombstones == 2 and made.statistics.live == 0


def test_a_torn_tail_of_the_newest_segment_is_dropped(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    append(log, put("a", "2", (1, 1, 1, 2)))
    log.close(clean=False)
    (path,) = segments(memory)
    overwrite(memory, path, memory.read(path)[:-3])
    assert values(view(memory)) == {"a": "1"}


def test_damage_in_a_sealed_segment_is_located(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.rotate()
    append(log, put("a", "2", (1, 1, 1, 2)))
    path = segments(memory)[0]
    data = bytearray(memory.read(path))
    data[-1] ^= 1
    overwrite(memory, path, bytes(data))
    with pytest.raises(CorruptLog) as caught:
        view(memory)
    assert caught.value.file == path and caught.value.offset > 0


def test_damage_before_synced_frames_is_no_torn_tail(
    memory: MemoryStore,
) -> None:
    """Damage before synced frames of the newest segment is no torn tail."""
    log = node(memory)
    for number in range(3):
        append(log, put("a", number, (1, 1, 1, number)))
    (path,) = segments(memory)
    first = next(iter(cluster(memory).changes())).first.frame
    data = bytearray(memory.read(path))
    data[first + 20] ^= 1
    overwrite(memory, path, bytes(data))
    with pytest.raises(CorruptLog) as caught:
        view(memory)
    assert caught.value.offset >= format.FRAME_HEADER_BYTES and caught.value.file == path


def test_a_missing_segment_is_named(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(3):
        append(log, put("a", number, (1, 1, 1, number)))
        log.rotate()
    memory.delete(segments(memory)[1])
    with pytest.raises(ShortLog, match=r"n1/wal/\*-00000002.wal"):
        view(memory)


def test_the_last_segment_of_a_closed_log_cannot_vanish(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.close()
    memory.delete(segments(memory)[-1])
    with pytest.raises(ShortLog):
        view(memory)


def test_sealed_segment_cut_between_frames_is_short(memory: MemoryStore) -> None:
    """A sealed segment that was cut between two frames is short."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    end = log.end.frame
    append(log, put("a", "2", (1, 1, 1, 2)))
    cut = log.end.frame
    log.rotate()
    append(log, put("b", "1", (1, 1, 1, 3)))
    path = segments(memory)[0]
    overwrite(memory, path, memory.read(path)[:cut])
    assert end < cut
    with pytest.raises(ShortLog) as caught:
        view(memory)
    assert caught.value.file == path


@pytest.mark.parametrize("which", [0, 1])
def test_sealed_segment_without_its_frames_is_short(memory: MemoryStore, which: int) -> None:
    """A sealed segment that lost all its frames is short and not empty."""
    log = node(memory)
    for request in range(1, 4):
        append(log, put("a", str(request), (1, 1, 1, request)))
        log.rotate()
    path = segments(memory)[which]
    overwrite(memory, path, memory.read(path)[: SegmentReader(memory, path).first])
    with pytest.raises(ShortLog) as caught:
        view(memory)
    assert caught.value.file == path


def test_never_written_sealed_segment_is_no_damage(
    memory: MemoryStore,
) -> None:
    """A sealed segment in which nothing was ever written is no damage.
    A failed commit was taken back before the rotation."""
    log = node(memory)
    for request in range(1, 4):
        mark = log.mark()
        append(log, put("a", "taken back", (1, 1, 1, request)))
        assert log.rewind(mark)
        log.rotate()
        if request > 1:
            append(log, put("a", str(request), (1, 1, 1, request)))
            log.rotate()
    read = [list(SegmentReader(memory, path).frames()) for path in segments(memory)]
    assert [len(frames) for frames in read] == [0, 0, 1, 0, 1]
    said = [SegmentReader(memory, path).header.previous_checksum for path in segments(memory)]
    assert said == [0, 1, 1, read[2][0].checksum, read[2][0].checksum], (
        "carried on over a segment without frames"
    )
    view(memory)
    for mode in ("absolute", "torn-tail", "point-in-time"):
        assert node_log(copy_files(memory), recovery_mode=mode).recovery.lost is None


def test_a_peer_that_is_writing_is_not_damaged(memory: MemoryStore) -> None:
    """Half a frame when it was read, whole and followed by others a moment later."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    (path,) = segments(memory)
    half = len(memory.read(path)) + 20
    append(log, put("a", "2", (1, 1, 1, 2)))
    append(log, put("a", "3", (1, 1, 1, 3)))
    store = Hooked(memory)
    reads = 0

    def cut(name: str, data: bytes, offset: int) -> bytes:
        nonlocal reads
        reads += name == path
        return data[: max(0, half - offset)] if name == path and reads <= 3 else data

    store.on_read = cut
    assert values(view(store)) == {"a": "3"}


def test_a_segment_that_was_only_begun_is_empty(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.rotate()
    for rest in (b"", b"\0" * 100_000, b"IMAP"):
        path = segments(memory)[0].replace("-00000001.wal", "-00000002.wal")
        overwrite(memory, path, rest)
        assert values(view(memory)) == {"a": "1"}


def test_a_missing_node_is_a_decision(memory: MemoryStore) -> None:
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    append(node(memory, "n2"), put("b", "1", (1, 1, 1, 1)))
    for file in memory.list("ns/c/nodes/n2"):
        memory.delete(file.path)
    with pytest.raises(MissingNode, match="'n2'"):
        view(memory)
    made = view(memory, recovery_policy=RecoveryPolicy.PARTIAL)
    assert values(made) == {"a": "1"} and list(made.missing) == ["n2"]


def test_another_disk_under_an_old_name_is_missing_node(memory: MemoryStore) -> None:
    """Another disk under an old node name is a missing node."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    made = cluster(memory)
    made.manifests.update(lambda manifest: replace(manifest, nodes={"n1": "another"}))
    with pytest.raises(MissingNode, match="registered was another"):
        view(memory)


def test_two_claims_of_a_version_do_not_stop_restore(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Two nodes that claim one partition version do not stop a restore."""
    first, second = node(memory), node(memory, "n2")
    append(first, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    append(second, put("a", "2", (1, 1, 1, 2)), put("b", "2", (1, 2, 1, 2)))
    made = view(memory)
    assert values(made) == {"a": "1", "b": "2"}
    assert [row[3] for row in made.load("orders", [b"a"])] == [b"1"]
    (said,) = caplog.messages
    for word in ("'orders'", "b'a'", "'n1'", "'n2'", "imap-wal verify", "--resolve", "--prefer"):
        assert word in said
    assert made.statistics.conflicts == 1
    append(second, put("a", "3", (1, 3, 1, 3)))
    made.catch_up()
    assert values(made) == {"a": "3", "b": "2"} and made.statistics.conflicts == 0, (
        "something newer settles it"
    )


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


def test_commit_during_a_look_does_not_scan_preallocated_space(
    memory: MemoryStore,
) -> None:
    """A commit during a look does not make it search the preallocated rest."""
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
        archive_sealed(memory, log.identity.node_folder, "n1", log.manifests, writing=log.unsealed)
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
    """A restore begins with the snapshot and replays of the log only what follows it."""
    log = node(memory)
    for number in range(30):
        append(log, put(f"k{number % 5}", f"old {number}", (1, 1, 1, number + 1)))
    append(log, put("deleted later", "1", (1, 1, 1, 31)))
    log.rotate()
    archive_sealed(memory, log.identity.node_folder, "n1", log.manifests, writing=log.unsealed)
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
        row[9][3]
        for changes in cluster(watched).changes()
        for row in changes.rows
        if row[0] == "orders"
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
    """A dropped map is forgotten by a view that had merged it even if a rewrite followed."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    made = view(memory)
    drop_map(cluster(memory), "orders")
    append(log, put("c", "1", (1, 1, 1, 3)))
    rewrite(cluster(memory), LocalEngine(SMALL))
    made.catch_up()
    assert values(made) == {"c": "1"}


def test_bytes_of_an_older_incarnation_behind_the_cut_are_void(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    append(first, put("a", "before", (1, 1, 1, 1)))
    made = cluster(memory)
    cuts = pin_cuts(made)
    append(first, put("a", "late", (1, 9, 1, 2)), put("b", "late", (1, 1, 1, 3)))
    append(second, put("c", "of a node that had no log", (1, 1, 1, 1)))
    early = view(memory)
    assert values(early) == {"a": "late", "b": "late", "c": "of a node that had no log"}
    cuts.pop("n2")
    made.manifests.update(
        lambda manifest: replace(manifest, lifetimes=(IncarnationRecord("id", 2, cuts),))
    )
    assert values(view(memory)) == {"a": "before"}
    early.catch_up()
    assert values(early) == {"a": "before"}, "a view that had already merged them begins anew"
    append(first, put("b", "new", (2, 1, 1, 1)))
    early.catch_up()
    assert values(early) == {"a": "before", "b": "new"}


def test_returning_node_counts_in_the_lifetime_it_missed(
    memory: MemoryStore,
) -> None:
    """A node that was missing when a lifetime began counts when it comes back."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.close()
    files = {file.path: memory.read(file.path) for file in memory.list("ns/c/nodes/n1")}
    for path in files:
        memory.delete(path)
    made = cluster(memory)
    cuts = pin_cuts(made)
    made.manifests.update(
        lambda manifest: replace(manifest, lifetimes=(IncarnationRecord("id", 2, cuts),))
    )
    for path, data in files.items():
        memory.create(path, data)
    assert values(view(memory)) == {"a": "1"}


def test_files_removed_during_a_read_restart_the_pass(memory: MemoryStore) -> None:
    """Files that go while they are read begin the pass anew."""
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
                memory, log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
            )
            rewrite(cluster(memory), LocalEngine(SMALL))
            prune(cluster(memory))
        return data

    store.on_read = vanish
    expected = {"a": "3", "b": "1", **{f"k{number}": "x" for number in range(4)}}
    assert values(view(store)) == expected
    store.on_read = None
    for reading in (cluster(store).changes(), cluster(store).changes(positions=True)):
        assert {row[1].decode() for changes in reading for row in changes.rows} == set(expected)


def test_view_finds_entries_archived_since_it_was_empty(
    memory: MemoryStore,
) -> None:
    """The view finds what was written and archived since there was no segment."""
    log = node(memory)
    made = view(memory)
    for value in ("1", "2"):
        append(log, put("a", value, (1, 1, 1, int(value))))
        log.rotate()
        archive_sealed(memory, log.identity.node_folder, "n1", log.manifests, writing=log.unsealed)
        assert segments(memory) == []
        made.catch_up()
        assert values(made) == {"a": value}


def test_changes_continue_in_the_archive_of_a_segment(
    memory: MemoryStore,
) -> None:
    """Changes continue in the archive when a segment is archived under them."""
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
                memory, log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
            )
    assert found == rows and places == sorted(places) and len(set(places)) == 6
    since = list(cluster(memory).changes({"n1": places[3]}))
    assert [row for changes in since for row in changes.rows] == rows[4:]


def test_metadata_of_all_nodes_comes_once_also_from_archives(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    for log in (first, second):
        log.write(format.METADATA, 1, [pack_plain(["schema", -5, b"\x00\xff"])])
        log.write(format.METADATA, 1, [pack_plain(["member", "id", log.identity.node])])
        append(log, put("a" + log.identity.node, "1", (1, 1, 1, 1)))
    expected = {("schema", -5, b"\x00\xff"), ("member", "id", "n1"), ("member", "id", "n2")}
    assert sorted(view(memory).metadata(), key=repr) == sorted(expected, key=repr)
    first.rotate()
    archive_sealed(
        memory, first.identity.node_folder, "n1", first.manifests, writing=first.unsealed
    )
    assert sorted(view(memory).metadata(), key=repr) == sorted(expected, key=repr)


def pack_plain(value: Any) -> bytes:
    import msgpack

    return bytes(msgpack.packb(value, use_bin_type=True))


class Hooked:
    """A store over another that counts what is read and may change it."""

    def __init__(self, inner: SegmentStore) -> None:
        self._inner = inner
        self.bytes_read = 0
        self.on_read: Callable[[str, bytes, int], bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._inner.read(path, offset, length)
        if self.on_read is not None:
            data = self.on_read(path, data, offset)
            data = self._inner.read(path, offset, length) if self.on_read is None else data
        self.bytes_read += len(data)
        return data


def test_where_every_commit_is_an_object_each_is_one_read(tmp_path: Path) -> None:
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
    """A look after a change asks each of fifty nodes twice and reads only the one that moved."""
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
    """A view that asks little misses nothing that was acknowledged before.
    Each of the ways in which an acknowledged change can come to be where the view did not look
    last time."""
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
            memory,
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


def test_key_listing_is_whole_across_a_new_lifetime(
    memory: MemoryStore,
) -> None:
    """A listing of keys under way is whole when a new lifetime makes the view begin anew."""
    log = node(memory)
    append(log, *(put(f"k{number:02d}", "1", (1, 1, 1, number + 1)) for number in range(30)))
    cuts = pin_cuts(cluster(memory))
    append(log, put("late", "void", (1, 1, 1, 99)))
    made = view(memory)
    listing = made.keys("orders", 7)
    found = next(listing)
    cluster(memory).manifests.update(
        lambda manifest: replace(manifest, lifetimes=(IncarnationRecord("id", 2, cuts),))
    )
    made.catch_up()
    found += [key for keys in listing for key in keys]
    assert sorted(found) == [b"k%02d" % number for number in range(30)]


def test_values_are_loaded_up_to_a_size(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, *(put(f"k{number}", "x" * 1000, (1, 1, 1, number + 1)) for number in range(10)))
    keys = [b"absent", *(b"k%d" % number for number in range(10))]
    for memory_bytes in (1 << 30, 1):
        made = view(memory, restore_memory_bytes=memory_bytes)
        rows, taken = made.load_some("orders", keys, 2500)
        assert [row[1] for row in rows] == [b"k0", b"k1"] and taken == 3
        assert made.load_some("orders", keys[taken:], None)[1] == 8
        assert len(made.load("orders", keys)) == 10
        made.close()
