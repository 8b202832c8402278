"""An actor is paused before one call, others finish meanwhile, and then the call is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imap_wal import format
from imap_wal.agent.membership.claims import VoidIncarnation
from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.agent.membership.sessions import Session, SessionRegistry
from imap_wal.agent.requests import About
from imap_wal.clock import SystemRandomness
from imap_wal.context import Context
from imap_wal.embedded.store import Store
from imap_wal.errors import CorruptLog, ImapWalError, InvalidSetting, OutcomeUnknown
from imap_wal.layout import Identity
from imap_wal.read.cluster import ClusterLog
from imap_wal.settings import RecoveryMode, Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from imap_wal.write.ring import CommitRequest
from storage_backends import SegmentStore, StoredFile
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.actors import NODE, Interrupted, embedded
from tests.support import FakeClock, node_log, row


def acknowledged(store: Store, key: str, value: Any) -> bool:
    try:
        store.map("m")[key] = value
    except ImapWalError:
        return False
    return True


def test_a_late_open_does_not_restore_a_deleted_permit(memory: MemoryStore) -> None:
    """Two opens began at one moment and were about to use the same epoch. The later one created the
    permit of that epoch again, after a third had deleted it and fenced its writer."""
    with embedded(memory) as first:
        first.map("m")["a"] = 1
    writers: list[Store] = []
    paused = Interrupted(memory)

    def others() -> None:
        held = Interrupted(memory)
        writers.append(embedded(held, takeover=True))
        writers[0].map("m")["b"] = 1
        writers.append(embedded(memory, takeover=True))

    paused.when, paused.meanwhile = (
        lambda name, path: name == "create" and path.endswith(".writer"),
        others,
    )
    with pytest.raises(ImapWalError):
        embedded(paused, takeover=True)
    assert not acknowledged(writers[0], "lost", 1), "two writers acknowledge"
    writers[1].map("m")["c"] = 1
    writers[1].close()
    with embedded(memory) as again:
        assert dict(again.map("m")) == {"a": 1, "b": 1, "c": 1}


def test_a_point_in_time_takeover_keeps_the_old_writer_out(tmp_path: Path) -> None:
    """It emptied the object that had the name of the old writer's next commit. That is done by a
    copy under another name, so the name was free again."""
    store = LocalObjects(str(tmp_path))
    old = embedded(store)
    for number in range(5):
        old.map("m")[f"k{number}"] = number
    third = sorted(file.path for file in store.list(f"{NODE}/wal") if file.path.endswith(".wal"))[2]
    data = bytearray(store.read(third))
    data[-3] ^= 1
    store.replace(third, bytes(data))
    new = embedded(store, takeover=True, recovery_mode=RecoveryMode.POINT_IN_TIME)
    found = dict(new.map("m"))
    assert not acknowledged(old, "late", 1), "two writers acknowledge"
    new.archive()
    assert not acknowledged(old, "late", 1)
    new.close()
    with embedded(store) as again:
        assert dict(again.map("m")) == found == {"k0": 0, "k1": 1}


def test_a_session_number_is_used_only_once(memory: MemoryStore) -> None:
    """The node's manifest was restored from a copy of the same epoch. A plug-in then got the
    session number of another one, and its first requests counted as logged."""
    log = node_log(memory)
    copy = {file.path: memory.read(file.path) for file in memory.list(f"{NODE}/manifest")}
    number = log.new_session("plug-in 1")
    log.write(format.ENTRIES, 1, [row("a", "1", request=7, session=number)])
    log.sync()
    for file in memory.list(f"{NODE}/manifest"):
        memory.delete(file.path)
    for path, data in copy.items():
        memory.create(path, data)
    again = node_log(memory, takeover=True)
    assert again.requests == {number: 7}
    assert again.new_session("plug-in 2") > number


class YoungFilesNotListed:
    """As on NFS: for a minute a listing may be without a file that another machine created."""

    def __init__(self, inner: SegmentStore) -> None:
        self._inner = inner
        self.capabilities, self.url = inner.capabilities, inner.url
        self._listed = {file.path for file in inner.list("")}
        self.young = lambda path: path.endswith(".claim") and path not in self._listed

    def list(self, folder: str) -> list[StoredFile]:
        return [file for file in self._inner.list(folder) if not self.young(file.path)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def sessions(store: Any, node: str) -> SessionRegistry:
    identity = Identity("default", "members", node)
    log = open_node_log(
        LogContext(
            Context(store, clock=FakeClock(), randomness=SystemRandomness()),
            identity,
            Settings(preallocate=False),
        )
    )
    return SessionRegistry(log, ClusterLog(Context(store), "default", "members"))


def hello(sessions: SessionRegistry, cluster: str) -> Session:
    return sessions.hello(b"connection", About(cluster, f"plug-in of {cluster}", "write"))[0]


def test_a_claim_deletes_a_permit_that_no_listing_shows(memory: MemoryStore) -> None:
    """Permits were found by a listing. If it was out of date, the former cluster's permit stayed,
    and that cluster then acknowledged above the cut."""
    stale: Any = YoungFilesNotListed(memory)
    here, there = sessions(memory, "n1"), sessions(stale, "n2")
    first = hello(here, "A")
    hello(there, "B")
    batch = CommitRequest([b""], 1, session=first.number)
    here.check_newest([batch])
    assert isinstance(batch.error, OutcomeUnknown)


def test_lifetimes_are_in_the_order_of_incarnations(memory: MemoryStore) -> None:
    """This holds whichever claim publishes first. `prune` drops a lifetime that the next one
    replaces. After a lifetime has begun, no earlier one begins: its cuts would void entries that
    count in the later one."""
    paused = Interrupted(memory)
    slow, fast = sessions(paused, "n1"), sessions(memory, "n2")
    paused.when, paused.meanwhile = (
        lambda name, path: name == "list" and path.endswith("/claims"),
        lambda: hello(fast, "B"),
    )
    with pytest.raises(VoidIncarnation):
        hello(slow, "A")
    hello(fast, "C")
    lifetimes = ClusterLog(Context(memory), "default", "members").manifest().lifetimes
    # Nothing was appended in B, so its record is replaced by that of C.
    assert [lifetime.cluster_id for lifetime in lifetimes] == ["C"]


def test_of_two_opens_with_one_epoch_one_acknowledges(memory: MemoryStore) -> None:
    """A manifest was restored from a copy. The first open had written nothing, so no file showed
    its epoch, and the second one got the same."""
    with embedded(memory) as store:
        store.map("m")["a"] = 1
    copy = {file.path: memory.read(file.path) for file in memory.list(f"{NODE}/manifest")}
    first = embedded(memory)
    for file in memory.list(f"{NODE}/manifest"):
        memory.delete(file.path)
    for path, data in copy.items():
        memory.create(path, data)
    with pytest.raises(CorruptLog, match="epoch 2 of this log was opened"):
        embedded(memory, takeover=True)
    for file in memory.list("default/embedded/opened"):
        memory.delete(file.path)
    with embedded(memory, takeover=True) as second:
        assert not acknowledged(first, "lost", 1), "two writers acknowledge"
        second.map("m")["b"] = 1
    with embedded(memory) as again:
        assert dict(again.map("m")) == {"a": 1, "b": 1}


def test_the_writer_of_a_forgotten_node_acknowledges_nothing(tmp_path: Path) -> None:
    """The log is on objects; `forget-node` removed the node while its writer was open."""
    store = LocalObjects(str(tmp_path))
    gone = embedded(store, "n1", shared=True)
    with embedded(store, "n2", shared=True):
        assert acknowledged(gone, "before", 1)
        forget_node(ClusterLog(Context(store), "default", "embedded"), "n1", lose=True)
    assert not acknowledged(gone, "lost", 1)


def test_the_first_cluster_shuts_an_open_store_out(memory: MemoryStore) -> None:
    """The embedded store continued to write above the cut of that cluster, and a restart dropped
    all of that as void."""
    store = embedded(memory, node="program", cluster="members")
    store.map("m")["before"] = 1
    hello(sessions(memory, "n1"), "A")
    assert not acknowledged(store, "after", 1), "it is void for the members"
    with pytest.raises(InvalidSetting, match="belongs to Hazelcast members"):
        embedded(memory, node="program", cluster="members")
    log = ClusterLog(Context(memory), "default", "members")
    assert sum(len(changes.rows) for changes in log.changes()) == 1


def test_a_claims_incarnation_is_above_that_of_an_open_store(memory: MemoryStore) -> None:
    """The embedded store was opened meanwhile and had the higher incarnation: its changes won over
    later ones of the members."""
    opened: list[Store] = []
    paused = Interrupted(memory)
    members = sessions(paused, "n1")

    def meanwhile() -> None:
        opened.append(embedded(memory, node="program", cluster="members", shared=True))
        opened[0].map("m")["before"] = 1

    paused.when, paused.meanwhile = (
        lambda name, path: name == "create" and "/claims/manifest/" in path,
        meanwhile,
    )
    session = hello(members, "A")
    assert not acknowledged(opened[0], "after", 1)
    manifest = ClusterLog(Context(memory), "default", "members").manifest()
    assert session.incarnation == manifest.incarnation == manifest.lifetimes[-1].incarnation > 2
