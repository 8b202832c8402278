"""H8: metadata does not grow without bound, and an acknowledgement reads no unchanged metadata.
`make bench` shows how long an open and a commit take then."""

from __future__ import annotations

from msgspec.structs import replace

from imap_wal.agent.membership.sessions import SessionRegistry
from imap_wal.agent.requests import About, Wish
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from imap_wal.write.registration import SESSIONS_A_LOG
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append, cluster, opened, values, view
from tests.support import FakeClock


class Counted(MemoryStore):
    """Records which files are read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.paths: list[str] = []

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self.paths.append(path)
        return super().read(path, offset, length)


def about(cluster_id: str, plugin: str) -> About:
    return About(cluster_id, plugin, "write")


def test_an_acknowledgement_reads_no_manifest(memory: MemoryStore) -> None:
    """With many maps and nodes the cluster's manifest takes megabytes, and it was read once a
    second."""
    clock, store = FakeClock(), Counted(memory.url.removeprefix("memory://"))
    log = opened(store, clock)
    sessions = SessionRegistry(log, cluster(store, clock))
    sessions.hello(b"c1", about("c-1", "p-1"))
    store.paths.clear()
    for _ in range(20):
        clock.advance(1.5)
        sessions.check_newest([])
    assert store.paths == []


def test_lifetimes_whose_entries_were_removed_are_dropped(memory: MemoryStore) -> None:
    """One was kept for each start of the cluster, with a position of each node in it."""
    clock = FakeClock()
    for number in range(1, 9):
        log = opened(memory, clock)
        sessions = SessionRegistry(log, cluster(memory, clock))
        session, _ = sessions.hello(b"c1", about(f"c-{number}", f"p-{number}"))
        append(log, put("a", str(number), (session.incarnation, 1, session.number, 1)))
        log.close()
        rewrite(cluster(memory, clock), LocalEngine(Settings()))
        prune(cluster(memory, clock))
        assert values(view(memory, clock)) == {"a": str(number)}
        assert len(cluster(memory, clock).manifest().lifetimes) <= 2


def test_views_whose_entries_were_removed_are_dropped(memory: MemoryStore) -> None:
    """They are lifetimes with one cluster id. What is kept of the sessions before them is bounded
    too."""
    clock = FakeClock()
    who = replace(about("c-1", "p-1"), member_uuid="m-1")
    for number in range(1, 9):
        log = opened(memory, clock)
        sessions = SessionRegistry(log, cluster(memory, clock))
        session, _ = sessions.hello(b"c1", replace(who, view=number))
        append(log, put("a", str(number), (session.incarnation, 1, session.number, 1)))
        wanted = Wish("c-1", "m-1", ["m-1"], [f"lost {number}"])
        assert sessions.view(b"c1", wanted).incarnation == 2, "none of those was in the list"
        log.close()
        rewrite(cluster(memory, clock), LocalEngine(Settings()))
        prune(cluster(memory, clock))
        assert values(view(memory, clock)) == {"a": str(number)}
    for number in range(3, 11):
        log = opened(memory, clock)
        sessions = SessionRegistry(log, cluster(memory, clock))
        sessions.hello(
            b"c2",
            replace(who, member_uuid=f"m-{number}", plugin_uuid=f"p-{number}", view=number - 1),
        )
        sessions.hello(b"c1", who)
        wanted = Wish("c-1", "m-1", ["m-1"], [f"m-{number}"])
        assert sessions.view(b"c1", wanted).incarnation == number
        session, _ = sessions.hello(b"c1", who)
        append(log, put("a", f"in {number}", (session.incarnation, 1, session.number, 1)))
        log.close()
        rewrite(cluster(memory, clock), LocalEngine(Settings()))
        prune(cluster(memory, clock))
        assert values(view(memory, clock)) == {"a": f"in {number}"}
        assert len(cluster(memory, clock).manifest().lifetimes) <= 2
        assert log.claims.read()[1].lost == (f"m-{number}",)


def test_requests_of_old_sessions_are_dropped(memory: MemoryStore) -> None:
    """A node's manifest kept the last request of every session."""
    clock = FakeClock()
    for number in range(1, 141):
        log = opened(memory, clock)
        session = log.new_session(f"p-{number}/1")
        append(log, put("a", str(number), (1, 1, session, 1)))
        log.requests[session] = 1
        log.close()
    manifest = log.manifests.read()[1]
    assert manifest.session == session and session < SESSIONS_A_LOG
    assert manifest.requests[session] == 1 and len(manifest.requests) <= 128
    assert len(manifest.plugins) <= 64
