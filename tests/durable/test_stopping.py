"""A close does not wait for work that can be left unfinished, and leaves no part of it half
done."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import imap_wal
from imap_wal.context import Context
from imap_wal.errors import Closed
from imap_wal.placement import Placed
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.retention import overlap
from imap_wal.settings import Settings
from storage_backends import SegmentStore
from storage_backends.gated import GatedStore
from storage_backends.memory import MemoryStore
from tests.agent.harness import config, plugin, serving
from tests.support import FakeClock, Threads, embedded, eventually, segments

MAPS = 30


class Held(GatedStore):
    """A storage on which the first call of one kind waits until `go`; counts the calls of that
    kind."""

    def __init__(self, inner: SegmentStore, kind: str, thread: str = "") -> None:
        super().__init__(inner)
        self.kind, self.thread, self.calls = kind, thread, 0
        self.reached, self.go = threading.Event(), threading.Event()

    def _hold(self, kind: str) -> None:
        if kind == self.kind and threading.current_thread().name.startswith(self.thread):
            self.calls += 1
            self.reached.set()
            assert self.go.wait(60)

    def create_from(self, path: str, local_file: str) -> None:
        self._hold("create_from")
        super().create_from(path, local_file)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if path.endswith(".wal"):
            self._hold("read")
        return super().read(path, offset, length)


def archives(store: SegmentStore) -> list[str]:
    return [file.path for file in store.list("") if file.path.endswith(".parquet")]


@pytest.fixture(autouse=True)
def one_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread stores archives: of several, each would end at its own next call."""
    monkeypatch.setattr(overlap, "THREADS", 1)


def test_close_ends_an_archive_run_at_its_next_call(
    memory: MemoryStore,
) -> None:
    with embedded(memory) as store:
        for number in range(MAPS):
            store.map(f"m{number}")["a"] = number
    storage = Held(memory, "create_from", "imap-wal-archive")
    store = embedded(
        storage, archive_interval_s=3600
    )  # segments of an earlier run are archived at once
    assert storage.reached.wait(20)
    before = len(segments(memory))
    closing = Threads(store.close)
    eventually(store.writer.maintenance._stop.is_set, "the close begins")
    storage.go.set()
    closing.join()
    assert storage.calls == 1, "not every map is archived before the close returns"
    assert len(segments(memory)) >= before, (
        "no segment is deleted for an archive that no manifest names"
    )
    with embedded(memory) as again:
        assert {name: dict(again.map(name)) for name in again.maps()} == {
            f"m{number}": {"a": number} for number in range(MAPS)
        }
        again.archive()
        named = {archive.path for archive in again.committer.log.manifests.read()[1].archives}
        assert set(archives(memory)) == named, "what was uploaded and not named is swept"
    with embedded(memory) as again:
        assert len(again.maps()) == MAPS


def test_agent_stop_ends_an_archive_run_at_next_call(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path, url=memory.url)
    with serving(settings), plugin(settings) as member:
        for number in range(MAPS):
            payload = member.payload(number + 1, {"a": "v"}).replace(
                b"\xa6orders", b"\xa6map%03d" % number
            )
            assert (
                member.client.ask("append", member.session, number + 1, 1, payload=payload)[0][0]
                == "ack"
            )
    storage = Held(memory, "create_from", "imap-wal-archive")
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(storage, place))
    with serving(config(tmp_path, url=memory.url, archive_interval_s=3600)) as agent:
        assert storage.reached.wait(20)
        maintenance = agent._log.writer.maintenance
        agent.stop()
        eventually(maintenance._stop.is_set, "the stop begins")
        storage.go.set()
    assert storage.calls == 1
    assert memory.list("default/c/nodes/n1/wal")


def test_an_interrupted_merge_ends_at_its_next_batch(memory: MemoryStore) -> None:
    with embedded(memory, segment_bytes=200) as store:
        for number in range(50):
            store.map("m")[number] = "x" * 100
    storage = Held(memory, "read")
    view = MaterializedView(
        ClusterLog(Context(storage, clock=FakeClock()), "default", "embedded"), Settings()
    )

    def merge() -> None:
        with pytest.raises(Closed, match="while it merged"):
            view.catch_up()

    merging = Threads(merge)
    assert storage.reached.wait(20)
    view.interrupt()
    storage.go.set()
    merging.join()
    assert storage.calls < 10 < len(segments(memory))
    view.close()


def test_stopped_agent_does_not_wait_for_its_restore(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path, url=memory.url, segment_bytes=300)
    with serving(settings), plugin(settings) as member:
        for number in range(50):
            member.put(**{f"k{number}": "x" * 100})
    storage = Held(memory, "read", "imap-wal-reads")
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(storage, place))
    with serving(settings) as agent:
        assert storage.reached.wait(20)
        agent.stop()
        eventually(lambda: agent._reads._view._merge.stopped, "the stop begins")
        storage.go.set()
    assert storage.calls < 10 < len(segments(memory))


def test_an_archive_by_hand_that_a_close_interrupts_says_so(memory: MemoryStore) -> None:
    storage = Held(memory, "create_from")
    store = embedded(storage)
    store.map("m")["a"] = 1
    store.map("n")["a"] = 1

    def archive() -> None:
        with pytest.raises(imap_wal.errors.Closed, match="nothing is lost"):
            store.archive()

    archiving = Threads(archive)
    assert storage.reached.wait(20)
    closing = Threads(store.close)
    eventually(store.writer.maintenance._stop.is_set, "the close begins")
    storage.go.set()
    archiving.join()
    closing.join()
    with embedded(memory) as again:
        assert {name: dict(again.map(name)) for name in again.maps()} == {
            "m": {"a": 1},
            "n": {"a": 1},
        }
