"""Manifests: one of several concurrent writers wins, nothing published is lost, and a writer that
slept does not win later."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, LostRace, UnsupportedVersion
from imap_wal.format import Position
from imap_wal.manifest import snapshots as snapshots_module
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from imap_wal.manifest.snapshots import LowWaterMark, Snapshot, SnapshotFile
from imap_wal.manifest.store import KEEP, ManifestLog
from storage_backends import AlreadyExists, SegmentStore, Unavailable
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.support import FakeClock, Threads


def log(store: SegmentStore) -> ManifestLog[ClusterManifest]:
    return ClusterManifestLog(Context(store), "c")


def count(manifest: ClusterManifest) -> ClusterManifest:
    return replace(manifest, incarnation=manifest.incarnation + 1)


def count_often(root: str, times: int) -> None:
    manifests = log(LocalStore(root))
    for _ in range(times):
        manifests.update(count, attempts=10_000)


def test_a_log_without_manifests_is_empty(memory: MemoryStore) -> None:
    assert log(memory).read() == (0, ClusterManifest())
    assert memory.list("") == []


def test_eight_threads_make_each_update_exactly_once(memory: MemoryStore) -> None:
    """With eight threads, no update is lost and none is made twice."""

    def work() -> None:
        manifests = log(memory)
        for _ in range(25):
            manifests.update(count, attempts=10_000)

    Threads(*[work] * 8).join()
    assert log(memory).read()[1].incarnation == 200


def test_three_processes_make_each_update_exactly_once(tmp_path: Path) -> None:
    """With three processes, no update is lost and none is made twice."""
    processes = [
        multiprocessing.get_context("forkserver").Process(
            target=count_often, args=(str(tmp_path), 40)
        )
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert log(LocalStore(str(tmp_path))).read() == (
        120,
        replace(ClusterManifest(), incarnation=120),
    )


class Meanwhile:
    """A store in which something happens just before, or just after, the first create."""

    def __init__(
        self,
        inner: SegmentStore,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._inner, self._before, self._after = inner, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes) -> None:
        before, self._before = self._before, lambda: None
        before()
        self._inner.create(path, data)
        after, self._after = self._after, lambda: None
        after()


def test_stale_writer_loses_after_its_number_was_cleaned(memory: MemoryStore) -> None:
    """A writer that slept until its number was cleaned does not win."""
    manifests = log(memory)
    manifests.update(count)

    def others() -> None:
        for _ in range(KEEP + 10):
            manifests.update(count)

    sleeper = log(Meanwhile(memory, before=others))
    seen: list[int] = []

    def change(manifest: ClusterManifest) -> ClusterManifest:
        seen.append(manifest.incarnation)
        return count(manifest)

    assert sleeper.update(change).incarnation == KEEP + 12
    assert seen == [1, KEEP + 11], "its first try, on what it had read long ago, was lost"
    assert log(memory).read()[1].incarnation == KEEP + 12


def test_writer_has_won_when_another_builds_on_its_manifest(
    memory: MemoryStore,
) -> None:
    """A writer has won, and does not repeat its change, if another writer built on its manifest at
    once."""
    manifests = log(memory)
    quick = log(Meanwhile(memory, after=lambda: manifests.update(count) and None))  # type: ignore[arg-type]
    quick.update(count)
    assert log(memory).read() == (2, replace(ClusterManifest(), incarnation=2))


def test_unanswered_create_is_recognised_by_its_nonce(
    memory: MemoryStore,
) -> None:
    """A writer whose create succeeded without an answer recognises its manifest by the nonce."""

    class Retrying(Meanwhile):
        """A driver that loses an answer and asks again."""

        def create(self, path: str, data: bytes) -> None:
            self._inner.create(path, data)
            self._inner.create(path, data)

    calls = []
    log(Retrying(memory)).update(lambda manifest: calls.append(1) or count(manifest))
    assert log(memory).read() == (1, replace(ClusterManifest(), incarnation=1))
    assert len(calls) == 1


def test_number_taken_by_another_writer_is_not_ours(memory: MemoryStore) -> None:
    """A number that another writer took is not mistaken for one's own."""
    manifests = log(memory)
    racer = log(Meanwhile(memory, before=lambda: manifests.update(count) and None))  # type: ignore[arg-type]
    assert racer.update(count).incarnation == 2


def test_a_failed_create_is_reported_and_publishes_nothing(memory: MemoryStore) -> None:
    with pytest.raises(Unavailable):
        log(FaultyStore(memory, Plan((Fault("error", kind="create"),)))).update(count)
    assert log(memory).read() == (0, ClusterManifest())


def test_a_writer_that_always_loses_gives_up_with_lost_race(memory: MemoryStore) -> None:
    class Unlucky(Meanwhile):
        def create(self, path: str, data: bytes) -> None:
            log(self._inner).update(count)
            self._inner.create(path, data)

    with pytest.raises(LostRace, match="3 times in a row"):
        log(Unlucky(memory)).update(count, attempts=3)


def test_an_update_that_changes_nothing_publishes_nothing(memory: MemoryStore) -> None:
    manifests = log(memory)
    manifests.update(count)
    manifests.update(lambda manifest: manifest)
    manifests.update(lambda manifest: None)
    assert manifests.read()[0] == 1


def test_stale_writer_loses_after_old_manifests_are_deleted(
    memory: MemoryStore,
) -> None:
    """A writer that slept while all former manifests were deleted does not win, also if more were
    published after that."""
    for more in range(3):
        manifests = log(memory)
        manifests.update(count)

        def others(more: int = more) -> None:
            log(memory).update(count)
            log(memory).update(count, alone=True)
            for _ in range(more):
                log(memory).update(count)

        sleeper = log(Meanwhile(memory, before=others))
        number, content = sleeper.read()
        assert not sleeper.publish(number, content), f"{more} more"
        log(memory).update(count)
        assert len(memory.list("")) == more + 2, "its file is deleted"


def test_a_slow_reader_on_another_thread_lowers_no_floor(memory: MemoryStore) -> None:
    """Two threads use one object. One of them read an older manifest, and is done only after the
    other one has deleted all earlier manifests."""
    reads, go_on = threading.Event(), threading.Event()

    class Slow(Meanwhile):
        def read(self, path: str) -> bytes:
            content = memory.read(path)
            if threading.current_thread() is not threading.main_thread():
                reads.set()
                assert go_on.wait(60)
            return content

    log(memory).update(count)
    manifests = log(Slow(memory))  # type: ignore[arg-type]
    reader = Threads(manifests.read)
    assert reads.wait(60)
    manifests.update(count, alone=True)

    def change(manifest: ClusterManifest) -> ClusterManifest:
        go_on.set()
        reader.join()
        return count(manifest)

    manifests.update(change)
    assert json.loads(memory.read("c/manifest/0000000003.json"))["floor"] == 2


def test_old_manifests_are_cleaned_except_those_of_slow_readers(memory: MemoryStore) -> None:
    manifests = log(memory)
    for _ in range(KEEP + 20):
        manifests.update(count)
    names = [file.path for file in memory.list("")]
    assert len(names) == KEEP + 1
    assert names[-1] == f"c/manifest/{KEEP + 20:010d}.json"


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"format": 1}'])
def test_a_manifest_that_is_not_whole_is_corrupt(memory: MemoryStore, damage: bytes) -> None:
    memory.create("c/manifest/0000000001.json", damage)
    with pytest.raises(CorruptLog, match="manifest"):
        log(memory).read()


def test_every_changed_byte_of_a_manifest_is_corrupt(memory: MemoryStore) -> None:
    NodeManifestLog(Context(memory, clock=FakeClock(), randomness=SeededRandomness(1)), "n").update(
        lambda _: NodeManifest("d", 3, 2, {"p": 1}, {2: 9})
    )
    path = "n/manifest/0000000001.json"
    whole = memory.read(path)
    expected = json.loads(whole)
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 0x01
        memory.replace(path, bytes(data))
        try:
            same = json.loads(data) == expected  # white space
        except ValueError:
            same = False
        if not same:
            with pytest.raises(CorruptLog):
                NodeManifestLog(Context(memory), "n").read()


@pytest.mark.parametrize("format", [1, 7, 9])
def test_manifest_of_another_format_is_not_overwritten(memory: MemoryStore, format: int) -> None:
    """A manifest of another format is unsupported, and not overwritten."""
    body: dict[str, Any] = {"format": format, "number": 1, "something": "new"}
    written = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    body["checksum"] = f"{google_crc32c.value(written):08x}"
    memory.create("c/manifest/0000000001.json", json.dumps(body).encode())
    with pytest.raises(
        UnsupportedVersion, match=rf"format {format}; imap-wal [\d.]+ reads 8; use the release"
    ):
        log(memory).update(count)
    assert [file.path for file in memory.list("")] == ["c/manifest/0000000001.json"]


def test_snapshots_of_many_maps_are_packed_and_copied_without_parsing(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(maps: int) -> dict[str, Snapshot]:
        shared = {f"n{at}": LowWaterMark(f"log{at}", Position(1, at, 0, 0)) for at in range(50)}
        own = {
            "n1": LowWaterMark("log1", Position(1, 7, 0, 0)),
            "n2": LowWaterMark("older", Position(1, 1, 0, 0)),
        }
        files = [Listed([SnapshotFile(f"s/{at}", 1, 10, 1, "", 0)]) for at in range(maps)]
        return {
            f"m{at}": Snapshot(at, files[at], own if at == 5 else shared, 1, 0, 10, 0)
            for at in range(maps)
        }

    wanted = ClusterManifest(nodes={"n1": "log1"}, snapshots=table(1000), generation=9)
    log(memory).update(lambda _: wanted)
    document = json.loads(memory.read("c/manifest/0000000001.json"))
    assert isinstance(document["snapshots"], str) and "marks" not in document

    with monkeypatch.context() as patched:
        patched.setattr(snapshots_module, "unpacked", None)
        patched.setattr(Snapshot, "to_json", None)
        log(memory).update(count)
        found = log(memory).read()[1]
        assert found.covered("n1") == (LowWaterMark("log1", Position(1, 7, 0, 0)),)
        assert found.covered("n2") == (
            LowWaterMark("log2", Position(1, 2, 0, 0)),
            LowWaterMark("older", Position(1, 1, 0, 0)),
        )
        assert found.covered("unknown") == ()
    assert found == replace(wanted, incarnation=1)
    assert dict(found.snapshots) == table(1000)

    log(memory).update(lambda manifest: replace(manifest, snapshots=table(255)))
    document = json.loads(memory.read("c/manifest/0000000003.json"))
    assert (len(document["snapshots"]), len(document["marks"])) == (255, 1)
    for name in ("n1", "n2", "n3", "unknown"):
        assert log(memory).read()[1].covered(name) == found.covered(name)


def test_foreign_files_beside_manifests_are_left_alone(memory: MemoryStore) -> None:
    memory.create("c/manifest/notes.txt", b"x")
    memory.create("c/manifest/x.json", b"x")
    log(memory).update(count)
    assert log(memory).read()[0] == 1


def test_the_exclusive_create_of_a_taken_number_fails(memory: MemoryStore) -> None:
    manifests = log(memory)
    manifests.update(count)
    with pytest.raises(AlreadyExists):
        memory.create(manifests.next_path(0), b"")
