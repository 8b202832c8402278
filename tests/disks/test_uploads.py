"""Uploads under crashes: lives of a writer that is killed at random operations of its disk and of
the root, compared with a dict."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from random import Random
from statistics import median

import pytest

from imap_wal.errors import MissingNode
from imap_wal.placement.router import OwnDiskStore, Unasked
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import RecoveryPolicy
from storage_backends import SegmentStore, StorageError, Unavailable
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore, forget
from storage_backends.testing import check_segment_store
from tests.kit.disk_writer import NODE, Writer, disk_context, restored
from tests.kit.effort import every, thorough

SEEDS = range(int(os.environ.get("DISK_SEED", "0")), int(os.environ.get("DISK_SEED", "0")) + 40)
_names = itertools.count()


def plan(store: FaultyStore, *faults: Fault) -> None:
    """Set the faults of this store from now on."""
    store.plan, store._seen = Plan(faults), [0] * len(faults)


class History:
    """Lives on one root and one disk. `known`: what was acknowledged; `maybe`: the change that a
    crash interrupted."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        name = f"uploads-{seed}-{next(_names)}"
        self.root, self.disk = MemoryStore(f"{name}-root"), MemoryStore(f"{name}-disk")
        self.known: dict[str, str | None] = {}
        self.maybe: dict[str, str | None] = {}
        self.request = 0

    def live(self) -> bool:
        """One life, killed at a random operation. Returns whether it ended cleanly."""
        random = self.random
        fault = Fault("kill", at=random.randrange(1, 120), when=random.choice(["before", "after"]))
        root, disk = (
            FaultyStore(self.root, Plan((fault,), self.seed)),
            FaultyStore(self.disk, Plan()),
        )
        if random.random() < 0.5:
            root, disk = (
                FaultyStore(self.root, Plan()),
                FaultyStore(self.disk, Plan((fault,), self.seed)),
            )
        try:
            writer = Writer(root, disk, random.randrange(2**32))
            for _ in range(random.randrange(1, 12)):
                self.step(writer)
            writer.log.close()
            writer.uploads.finish(60)
        except Killed:
            for each in (root, disk):
                plan(each, Fault("kill", times=0))
                with pytest.raises(Killed):
                    each.exists("x")  # the other half of the process dies too: locks are released
            return False
        return not root.dead and not disk.dead

    def step(self, writer: Writer) -> None:
        random = self.random
        match random.choice(["put", "put", "put", "delete", "rotate", "upload", "archive"]):
            case "put" | "delete" as what:
                self.request += 1
                key = f"k{random.randrange(6)}"
                value = f"v{self.request}" if what == "put" else None
                self.maybe[key] = value
                writer.put(key, value, self.request)
                self.known[key] = self.maybe.pop(key)
            case "rotate":
                writer.log.rotate()
            case "upload":
                writer.uploads.run()
            case "archive":
                writer.archive()

    def check(self, found: dict[str, str]) -> None:
        for key in {*self.known, *self.maybe, *found}:
            possible = {self.known.get(key), self.maybe.get(key, self.known.get(key))}
            assert found.get(key) in possible, (self.seed, key, found.get(key), possible)
        self.known, self.maybe = {**dict.fromkeys(self.known), **found}, {}

    def in_root(self) -> dict[str, str]:
        """What the uploaded segments and the archives have."""
        return restored(OwnDiskStore(self.root, None, "", Unasked(self.root)), "partial")[0]


@every(13)
@pytest.mark.parametrize("seed", SEEDS)
def test_lives_with_uploads_lose_nothing(seed: int) -> None:
    history = History(seed)
    for _ in range(history.random.randrange(2, 8)):
        clean = history.live()
        if not history.root.list(f"{NODE}/manifest"):
            continue
        if clean:  # everything is in the root
            found, missing = restored(
                OwnDiskStore(history.root, None, "", Unasked(history.root)), "full"
            )
            assert not missing, seed
            history.check(found)
        writer = Writer(history.root, history.disk, history.random.randrange(2**32))
        history.check(restored(writer.store)[0])
        for path in {file.path for file in history.root.list(f"{NODE}/wal")} & {
            file.path for file in history.disk.list(f"{NODE}/wal")
        }:
            if path.endswith(".wal"):
                assert history.root.read(path) == history.disk.read(path), (seed, path)
        writer.log.close()
        writer.uploads.finish(60)
        writer.store.close()
    forget(history.root.url.removeprefix("memory://"))


@every(7)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_disk_costs_what_was_not_uploaded(seed: int) -> None:
    """Every open and every restore reports it."""
    history = History(seed)
    writer = Writer(history.root, history.disk, seed)
    for _ in range(history.random.randrange(3, 25)):
        history.step(writer)
    if history.random.random() < 0.5:
        writer.log.close()  # cleanly, and the disk is lost before the rest is uploaded
    else:
        writer.log.permit.release()  # as the end of its process would
    uploaded = history.in_root()
    whole = writer.log.manifests.read()[1]
    lost = {key for key, value in history.known.items() if uploaded.get(key) != value}
    reader = OwnDiskStore(history.root, None, "", Unasked(history.root))
    if lost:
        with pytest.raises(MissingNode, match="are only on the own disk"):
            restored(reader)
        with pytest.raises(MissingNode, match="is new or another one"):
            Writer(history.root, MemoryStore(f"new-{seed}"), seed + 1)
    disk = MemoryStore(f"new-{seed}-{next(_names)}")
    crash = Fault("kill", at=history.random.randrange(1, 30))
    faulty = FaultyStore(disk, Plan((crash,), seed))
    try:
        Writer(history.root, faulty, seed + 2, "partial").log.permit.release()
    except Killed:
        for key in list(history.root.list("")):
            if key.path.endswith("writer.lock"):
                history.root.delete(key.path)
    with_loss = Writer(history.root, disk, seed + 3, "partial")
    assert restored(with_loss.store, "partial")[0] == uploaded, seed
    assert with_loss.log.manifests.read()[1].newest >= whole.newest, seed
    history.request += 1
    with_loss.put("after", "loss", history.request)
    with_loss.log.close()
    with_loss.uploads.finish(60)
    found, missing = restored(reader)
    assert not missing
    assert found == {**uploaded, "after": "loss"}, seed


def test_a_rewrite_without_the_tail_keeps_deleted_keys_deleted() -> None:
    """The archive has the key, and only the tail has its deletion: it must not count as covered."""
    name = f"rewritten-{next(_names)}"
    root, disk = MemoryStore(f"{name}-root"), MemoryStore(f"{name}-disk")
    writer = Writer(root, disk, 1)
    writer.put("deleted", "1", 1)
    writer.put("kept", "1", 2)
    writer.archive()
    writer.put("uploaded", "1", 3)
    writer.log.rotate()
    writer.uploads.run()
    writer.put("deleted", None, 4)
    writer.log.close()  # its checkpoint is in the tail
    reader = ClusterLog(
        disk_context(OwnDiskStore(root, None, "", Unasked(root))),
        "ns",
        "c",
    )
    with pytest.raises(MissingNode, match="are only on the own disk"):
        rewrite(reader, LocalEngine())
    assert "n1" in rewrite(reader, LocalEngine(), policy=RecoveryPolicy.PARTIAL).missing
    assert "n1" in prune(reader).skipped
    assert restored(writer.store)[0] == {"kept": "1", "uploaded": "1"}
    writer.uploads.finish(60)
    assert not rewrite(reader, LocalEngine()).missing
    prune(reader)
    for own_disk in (reader.context.own_disk, writer.store):
        assert own_disk is not None
        assert restored(own_disk)[0] == {"kept": "1", "uploaded": "1"}


def test_own_disks_keep_every_promise_of_a_store(tmp_path: Path) -> None:
    def reopen() -> SegmentStore:
        root, disk = LocalStore(str(tmp_path / "root")), LocalStore(str(tmp_path / "disk"))
        return OwnDiskStore(root, disk, NODE, Unasked(root))

    check_segment_store(reopen(), reopen=reopen)


def test_a_damaged_upload_is_deleted_and_made_again(tmp_path: Path) -> None:
    class Flipping(MemoryStore):
        damage = True

        def create(self, path: str, data: bytes) -> None:
            flipped = self.damage and path.endswith(".wal")
            super().create(path, bytes([data[0] ^ 1]) + data[1:] if flipped else data)

    root, disk = Flipping(f"flip-{next(_names)}"), MemoryStore(f"flip-{next(_names)}")
    writer = Writer(root, disk, 1)
    writer.put("a", "1", 1)
    writer.log.rotate()
    with pytest.raises(Unavailable, match="checksum"):
        writer.uploads.run()
    assert not [file for file in root.list("") if file.path.endswith(".wal")]
    Flipping.damage = False
    writer.uploads.run()
    (there,) = [file.path for file in root.list("") if file.path.endswith(".wal")]
    assert SegmentReader(root, there).header.number == 1
    assert restored(OwnDiskStore(root, None, "", Unasked(root)))[0] == {"a": "1"}


def test_an_upload_without_a_read_back_is_checked_later() -> None:
    class Damaging(FaultyStore):
        def create(self, path: str, data: bytes) -> None:
            last = path.endswith("-00000002.wal")
            super().create(path, data[:-1] + bytes([data[-1] ^ 1]) if last else data)

    root = Damaging(MemoryStore(f"unread-{next(_names)}"), Plan())
    disk = MemoryStore(f"unread-{next(_names)}")
    writer = Writer(root, disk, 1)
    for number in (1, 2):
        writer.put("a", str(number), number)
        writer.log.rotate()
        if number == 1:
            writer.uploads.run()
    plan(root, Fault("error", kind="read", path="*.wal"))
    with pytest.raises(Unavailable, match="planned fault"):
        writer.uploads.run()
    with pytest.raises(Unavailable, match="checksum"):
        writer.uploads.run()


def test_a_storage_that_fails_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    root = FaultyStore(MemoryStore(f"later-{next(_names)}"), Plan())
    writer = Writer(root, MemoryStore(f"later-{next(_names)}"), 1)
    writer.put("a", "1", 1)
    writer.log.rotate()
    plan(root, Fault("error", kind="create", path="*.wal", times=0))
    pauses = []
    for _ in range(12):
        writer.uploads._pause = 0.01
        assert not writer.uploads._turn(writer.uploads.worker)
        pauses.append(writer.uploads._pause)
    assert writer.uploads.statistics.failures == 12
    assert "planned fault" in writer.uploads.statistics.error
    assert writer.uploads.statistics.bytes > 0
    for at, pause in enumerate(pauses):
        assert 0.5 * min(2**at, 120) <= pause <= 1.5 * min(2**at, 120)
    assert len(set(pauses[7:])) == 5, "agents do not return at the same moment"
    plan(root)
    writer.uploads._pause = 0.01
    assert writer.uploads._turn(writer.uploads.worker)
    assert writer.uploads.statistics.bytes == 0
    assert writer.uploads.statistics.uploaded == 1


class Half(FaultyStore):
    """Half of the creations of segments fail."""

    def __init__(self, inner: SegmentStore, plan: Plan) -> None:
        super().__init__(inner, plan)
        self.random = Random(1)

    def create(self, path: str, data: bytes) -> None:
        if path.endswith(".wal") and self.random.random() < 0.5:
            raise Unavailable("planned fault", path)
        super().create(path, data)


class Answerless(FaultyStore):
    """Every creation of a segment succeeds, and its answer is lost."""

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if path.endswith(".wal"):
            raise Unavailable("planned fault", path)


@thorough
@pytest.mark.parametrize("kind", [Half, Answerless])
def test_the_pause_does_not_grow_while_segments_arrive(
    kind: type[FaultyStore], caplog: pytest.LogCaptureFixture
) -> None:
    """A segment is sealed each 30 s, for an hour."""
    caplog.set_level(logging.CRITICAL)
    writer = Writer(
        kind(MemoryStore(f"half-{next(_names)}"), Plan()), MemoryStore(f"half-{next(_names)}"), 1
    )
    sealed, next_run_s, lags = 0, 0.0, []
    for second in range(3600):
        if second % 30 == 0:
            sealed += 1
            writer.put("a", str(sealed), sealed)
            writer.log.rotate()
        writer.clock.advance(1)
        if second >= next_run_s:
            writer.uploads._pause = 0.0001
            writer.uploads._turn(writer.uploads.worker)
            next_run_s = second + writer.uploads._pause
        lags.append(writer.uploads.statistics.seconds)
    assert writer.uploads.statistics.failures > 10, "it failed often"
    assert median(lags) < 30, "one long series of failures may be followed by long pauses"
    assert lags[-1] < 60


def test_what_waits_is_known_without_the_root(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    root = FaultyStore(MemoryStore(f"dark-{next(_names)}"), Plan())
    disk = MemoryStore(f"dark-{next(_names)}")
    writer = Writer(root, disk, 1)
    writer.put("uploaded", "1", 1)
    writer.log.rotate()
    writer.uploads.run()
    plan(root, Fault("error", kind="list", path="*/wal", times=0))
    for number in range(2, 8):
        writer.put("a", str(number), number)
        writer.log.rotate()
    writer.clock.advance(100)
    writer.uploads._turn(writer.uploads.worker)
    on_disk = {file.path: file.size for file in disk.list(f"{NODE}/wal")}
    six = sum(size for path, size in on_disk.items() if path.endswith(".wal"))
    six -= sum(file.size for file in root.inner.list(f"{NODE}/wal") if file.path in on_disk)
    found = writer.uploads.statistics
    assert (found.failures, found.bytes, found.seconds) == (1, six, 100.0)
    writer.put("a", "8", 8)
    writer.log.rotate()
    writer.clock.advance(20)
    writer.uploads._pause = 60.0
    writer.uploads._turn(writer.uploads.worker)
    later = writer.uploads.statistics
    assert later.failures == 1, "the pause has not ended"
    assert later.bytes > six, "a segment that was sealed in the pause counts"
    assert later.seconds == 120.0
    plan(root)
    writer.uploads.run()
    assert writer.uploads.statistics.bytes == 0


def test_before_the_first_look_at_the_root_all_segments_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    root = FaultyStore(MemoryStore(f"first-{next(_names)}"), Plan())
    writer = Writer(root, MemoryStore(f"first-{next(_names)}"), 1)
    writer.put("a", "1", 1)
    writer.log.rotate()
    plan(root, Fault("error", kind="list", path="*/wal", times=0))
    writer.clock.advance(30)
    with pytest.raises(Unavailable):
        writer.uploads.run()
    assert writer.uploads.statistics.bytes > 0
    assert writer.uploads.statistics.seconds == 30.0


def test_a_segment_that_the_root_lacks_is_not_begun() -> None:
    """Otherwise the loss of the disk would not show that it was there."""
    root = FaultyStore(MemoryStore(f"named-{next(_names)}"), Plan())
    writer = Writer(root, MemoryStore(f"named-{next(_names)}"), 1)
    plan(root, Fault("error", kind="create", path="*manifest*", times=0))
    with pytest.raises(StorageError):
        writer.put("a", "1", 1)
