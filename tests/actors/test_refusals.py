"""A refused call changes nothing: each reason to refuse, at each entry point, on both kinds of
storage. All files are compared, by path and content.

The locks of nodes are left out: an open takes the lock before it examines the log, because no other
process may change the log meanwhile. A takeover examines the log first, so there they count too.
"""

from __future__ import annotations

import dbm.dumb
import json
import os
import shelve
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal import format, layout
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.agent.open_log import OpenLog
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, ImapWalError, ReadOnly
from imap_wal.format import START
from imap_wal.layout import Identity
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.manifest.store import with_checksum
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention import backfill
from imap_wal.retention.archive import archive_offline
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from imap_wal.security.encryption import keys_from
from rewrite_cli.cli import group
from storage_backends import Lock, NoSpace, SegmentStore, StorageError, Unavailable
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.local import LocalStore
from storage_backends.objects import LocalObjects
from tests.encrypted import key_file, other
from tests.kit.effort import every

Content = Mapping[str, bytes]
KINDS: dict[str, Callable[[str], SegmentStore]] = {"files": LocalStore, "objects": LocalObjects}
SMALL: dict[str, Any] = {"segment_bytes": 64 * 1024, "preallocate": False}
MAPS, RECORDS = "default/embedded", "default/log"
CREATES, DELETES = "create|create_from|replace|open_append|append", "truncate|delete"


@dataclass
class Place:
    """A log with two nodes that were not closed, and a log of records; `plan`: what fails."""

    root: Path
    kind: str
    keys: str
    scratch: Path
    plan: Plan = field(default_factory=Plan)
    settings: dict[str, Any] = field(default_factory=dict)
    held: list[Lock] = field(default_factory=list)

    def store(self) -> SegmentStore:
        return FaultyStore(KINDS[self.kind](str(self.root)), self.plan)

    def log(self) -> ClusterLog:
        return ClusterLog(Context(self.store(), keys_from(self.keys)), "default", "embedded")

    def content(self) -> Content:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def nodes(self) -> list[Path]:
        return [self.root / MAPS / "nodes/n1", self.root / RECORDS / "nodes/log"]


# ---- entry points --------------------------------------------------------------------------------


def maps(place: Place, **options: Any) -> None:
    imap_wal.open(
        str(place.root),
        storage=place.store(),
        encryption_keys=place.keys,
        **{**SMALL, "node": "n1", **options, **place.settings},
    ).close()


def records(place: Place, **options: Any) -> None:
    imap_wal.log.open(
        str(place.root),
        storage=place.store(),
        encryption_keys=place.keys,
        **{**SMALL, **options, **place.settings},
    ).close()


def records_made(place: Place, **options: Any) -> None:
    imap_wal.log.create(
        str(place.root),
        storage=place.store(),
        encryption_keys=place.keys,
        **{**SMALL, **options, **place.settings},
    ).close()


def served(place: Place, **options: Any) -> None:
    imap_wal.connect(
        str(place.root),
        socket=place.scratch / "socket",
        timeout_s=20,
        storage=place.store(),
        encryption_keys=place.keys,
        **{**SMALL, "node": "n1", **options, **place.settings},
    ).close()


def followed(place: Place) -> None:
    """It writes nothing, also if it is not refused; so it counts as refused."""
    imap_wal.open(
        str(place.root),
        read_only=True,
        follow=True,
        storage=place.store(),
        encryption_keys=place.keys,
        **{**SMALL, **place.settings},
    ).close()
    raise ReadOnly("it changes nothing")


def imported(place: Place, *more: object) -> None:
    """An import into a log that is not closed, or without its keys, or of `more` values."""
    with shelve.Shelf(dbm.dumb.open(f"{place.scratch}/old", "n")) as old:  # type: ignore[arg-type]
        for number, value in enumerate((1, *more)):
            old[f"{number}"] = value
    keys = ["--encryption-keys", place.keys] if place.keys else []
    words = ["import", "shelve", f"{place.scratch}/old", place.store().url, "--map", "new"]
    ended = CliRunner().invoke(group, [*keys, *words])
    if ended.exit_code:
        raise ReadOnly(f"{ended.exception} {ended.stderr}")


def agent(place: Place, **options: Any) -> None:
    config = AgentConfig(
        url=str(place.root),
        cluster="embedded",
        node="n1",
        endpoint=f"ipc://{place.scratch}/agent",
        log=imap_wal.Settings(encryption_keys=place.keys, **{**SMALL, **place.settings}),
    )
    OpenLog(config, place.log(), **options).close(clean=True)


def forget(place: Place) -> None:
    forget_node(place.log(), "n1", lose=True)


def archive(place: Place) -> None:
    log = place.log()
    archive_offline(log.context, Identity("default", "embedded", "n1"), log.node_folder("n1"))


def rewritten(place: Place) -> None:
    rewrite(place.log(), LocalEngine())


def written_by_spark(place: Place) -> None:
    backfill.begin(place.log())


ENTRANCES: dict[str, Callable[[Place], None]] = {
    "open": maps,
    "takeover": lambda place: maps(place, takeover=True),
    "a new node": lambda place: maps(place, node="n3"),
    "a new node beside others": lambda place: maps(place, node="n3", shared=True),
    "another node": lambda place: maps(place, node="n2"),
    "agent": agent,
    "takeover by an agent": lambda place: agent(place, takeover=True),
    "log": records,
    "takeover of a log": lambda place: records(place, takeover=True),
    "forget-node": forget,
    "archive": archive,
    "rewrite": rewritten,
    "backfill": written_by_spark,
    "connect": served,
    "connect under a new node": lambda place: served(place, node="n3"),
    "follow": followed,
    "import": imported,
    "import of a class": lambda place: imported(place, Path()),
    "a log among maps": lambda place: records_made(place, cluster="embedded", node="r"),
    "maps in a log": lambda place: maps(place, cluster="log", node="log", takeover=True),
}


# ---- reasons -------------------------------------------------------------------------------------


def with_list(*items: str) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        place.keys = key_file(place.scratch, *items) if items else ""

    return change


def with_setting(**settings: Any) -> Callable[[Place], None]:
    return lambda place: place.settings.update(settings)


def failing(error: type[StorageError], kinds: str) -> Callable[[Place], None]:
    """On files, a lock can still be taken: its file is there."""

    def change(place: Place) -> None:
        failing = kinds if place.kind == "files" else f"{kinds}|lock"
        place.plan = Plan((Fault("error", kind=failing, times=0, error=error),))

    return change


def manifests(cluster: bool) -> Callable[[Place], Iterator[Path]]:
    def found(place: Place) -> Iterator[Path]:
        for node in place.nodes():
            yield max((node.parent.parent if cluster else node).glob("manifest/*.json"))

    return found


def newer_manifest(cluster: bool) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        for path in manifests(cluster)(place):
            body = {**json.loads(path.read_bytes()), "format": 99}
            body.pop("checksum")
            path.write_bytes(with_checksum(body))

    return change


def damaged_manifest(cluster: bool) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        for path in manifests(cluster)(place):
            path.write_bytes(path.read_bytes().replace(b'"number"', b'"numbre"'))

    return change


def segments(node: Path) -> list[Path]:
    return sorted(node.glob("wal/*.wal"))


def changed_segment(change: Callable[[bytes], bytes]) -> Callable[[Place], None]:
    """The last segment but one is another one."""

    def changed(place: Place) -> None:
        for node in place.nodes():
            path = segments(node)[-2]
            path.write_bytes(change(path.read_bytes()))

    return changed


def of_newer_version(data: bytes) -> bytes:
    end = format.decode_header(data, "")[1]
    at = len(format.MAGIC)
    return format.with_crc(data[:at] + b"\x09" + data[at + 1 : end - 4]) + data[end:]


def damaged(data: bytes) -> bytes:
    return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


def missing_segment(place: Place) -> None:
    for node in place.nodes():
        segments(node)[-2].unlink()


def missing_archive(place: Place) -> None:
    for path in place.root.rglob("archive/**/*.parquet"):
        path.unlink()


def another_log(place: Place) -> None:
    """The folders of two nodes are exchanged, and that of the log of records is a copy."""
    first, second = (place.root / MAPS / "nodes" / name for name in ("n1", "n2"))
    first.rename(place.scratch / "aside")
    second.rename(first)
    (place.scratch / "aside").rename(second)
    shutil.rmtree(place.nodes()[1])
    shutil.copytree(first, place.nodes()[1])


def another_copy(place: Place) -> None:
    """The folders are of another copy of these logs. Both were opened equally often since."""
    copy = place.scratch / "copy"
    shutil.copytree(place.root, copy)
    for root in (copy, place.root):
        for write in (maps, records):
            write(replace(place, root=root))
    for node in place.nodes():
        shutil.rmtree(node)
        (copy / node.relative_to(place.root)).rename(node)
    shutil.rmtree(copy)


def forgotten(place: Place) -> None:
    for node in place.nodes():
        clusters = ClusterManifestLog(
            Context(KINDS[place.kind](str(place.root))),
            str(node.parent.parent.relative_to(place.root)),
        )

        def change(manifest: Any, name: str = node.name) -> Any:
            nodes = {each: known for each, known in manifest.nodes.items() if each != name}
            gone = {manifest.nodes[name]: START}
            return replace(manifest, nodes=nodes, forgotten=gone)

        clusters.update(change)


def older_cluster(place: Place) -> None:
    """The manifests of the cluster are those of an older copy."""
    for node in place.nodes():
        for path in sorted((node.parent.parent / "manifest").glob("*.json"))[2:]:
            path.unlink()


def locked(place: Place) -> None:
    store = KINDS[place.kind](str(place.root))
    for node in place.nodes():
        path = layout.lock_path(str(node.relative_to(place.root)))
        place.held.append(store.lock(path, "another process"))


def missing_node(place: Place) -> None:
    """Of the maps, a node that no entry point opens."""
    shutil.rmtree(place.root / MAPS / "nodes/n4")
    shutil.rmtree(place.nodes()[1])


@dataclass(frozen=True)
class Reason:
    """`change` changes the log or the caller so that all entry points except `accepts` refuse.
    `late`: those that find it only when they read all entries, after they have written."""

    change: Callable[[Place], None]
    accepts: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()


_TAKEOVERS = frozenset({"takeover", "takeover by an agent", "takeover of a log", "forget-node"})
_NEVER = frozenset({"follow", "import of a class", "a log among maps", "maps in a log"})
"""The last two entry points are for logs of another kind."""
_NEVER_OF_KILLED = _NEVER | {"backfill", "import"}
"""Two logs were not closed."""
_AGENTS = frozenset({"agent", "takeover by an agent"})
"""They read the other logs and the archives when a map is first used."""
_OF_RECORDS = frozenset({"log", "takeover of a log"})
_OF_OTHERS = frozenset(
    {
        "a new node",
        "a new node beside others",
        "another node",
        "connect under a new node",
        "rewrite",
    }
)
_UNSET = frozenset({"archive", "forget-node", "rewrite"})
# A restore reads the logs that it does not take over only after its node is registered. A rewrite
# reserves the number of its generation first.
_READS = frozenset({"a new node beside others", "rewrite"})
REASONS: dict[str, Reason] = {
    "none": Reason(with_setting(), accepts=frozenset(ENTRANCES) - _NEVER_OF_KILLED),
    "no keys": Reason(with_list()),
    "wrong keys": Reason(with_list(other("a"))),
    "another list of keys": Reason(with_list("b")),
    "newer segment": Reason(changed_segment(of_newer_version), late=_READS),
    "damaged segment": Reason(changed_segment(damaged), late=_READS),
    "missing segment": Reason(missing_segment),
    "missing archive": Reason(
        missing_archive,
        accepts=_OF_RECORDS | _AGENTS | {"archive", "forget-node"},
        late=_READS & {"rewrite"},
    ),
    "missing node": Reason(missing_node, accepts=_AGENTS | {"archive", "forget-node"}),
    "newer manifest of a node": Reason(newer_manifest(cluster=False)),
    "newer manifest of the cluster": Reason(newer_manifest(cluster=True)),
    "damaged manifest of a node": Reason(damaged_manifest(cluster=False)),
    "damaged manifest of the cluster": Reason(damaged_manifest(cluster=True)),
    "older manifests of the cluster": Reason(older_cluster),
    "the log of another node": Reason(another_log, accepts=frozenset({"forget-node"})),
    # All logs are closed then. These two add a node, and read no other one.
    "the folder of another copy": Reason(another_copy, accepts=frozenset({"backfill", "import"})),
    "a forgotten log": Reason(
        forgotten,
        accepts=_OF_OTHERS,
    ),
    "locked": Reason(locked, accepts=_TAKEOVERS | _READS),
    "settings": Reason(with_setting(durability="sometimes"), accepts=_UNSET),
    "read-only": Reason(failing(Unavailable, f"{CREATES}|{DELETES}")),
    "full": Reason(failing(NoSpace, CREATES)),
}


# ---- the table -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails here."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)


@pytest.fixture(scope="module", params=sorted(KINDS))
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The writers of these logs were killed. Each has segments after an archive."""
    return made(request.param, tmp_path_factory.mktemp("killed"), closed=False)


@pytest.fixture(scope="module", params=sorted(KINDS))
def closed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """These logs were archived and closed: an open reads none of their segments."""
    return made(request.param, tmp_path_factory.mktemp("closed"), closed=True)


def made(kind: str, scratch: Path, *, closed: bool) -> Place:
    place = Place(scratch / "log", kind, key_file(scratch, "a"), scratch)
    options: dict[str, Any] = {**SMALL, "encryption_keys": place.keys}
    store = KINDS[kind](str(place.root))
    stores = [
        imap_wal.open(str(place.root), storage=store, node=node, shared=True, **options)
        for node in ("n1", "n2", "n4")
    ]
    log = imap_wal.log.create(str(place.root), storage=store, **options)
    writers: list[Any] = [*stores, log]
    for number, opened in enumerate(stores):
        opened.map("orders")[f"first {number}"] = "x" * 100
        opened.archive()
    log.append("m", (b"first", b"x"))
    log.archive()
    if closed:
        for each in writers:
            each.close()
        return place
    stores.pop().close()  # n4
    for number in range(4):
        for opened in stores:
            opened.map("orders")[f"{number}"] = "x" * 30_000
        log.append("m", (b"k", b"x" * 30_000))
    shutil.copytree(place.root, scratch / "killed")
    for each in writers:
        each.close()
    shutil.rmtree(place.root)
    (scratch / "killed").rename(place.root)
    for lock in [*place.root.rglob(layout.LOCK)]:
        shutil.rmtree(lock) if lock.is_dir() else lock.unlink()
    return place


def without_locks(content: Content) -> Content:
    return {path: data for path, data in content.items() if f"/{layout.LOCK}" not in path}


def attempt(entrance: Callable[[Place], None], place: Place) -> Exception | None:
    try:
        entrance(place)
    except (ImapWalError, StorageError) as error:
        return error
    return None


def refused(original: Place, scratch: Path, reason: Reason) -> tuple[set[str], dict[str, str]]:
    """The entry points that accepted this log, and those that refused it but changed it."""
    accepted, changed = set(), {}
    place: Place | None = None
    for number, (name, entrance) in enumerate(ENTRANCES.items()):
        if place is None:  # the last call was accepted
            root = scratch / str(number)
            shutil.copytree(original.root, root)
            place = replace(original, root=root, scratch=scratch, settings={}, held=[])
            reason.change(place)
        before = place.content()
        error = attempt(entrance, place)
        after = place.content()
        if name not in _TAKEOVERS:
            before, after = without_locks(before), without_locks(after)
        if error is None:
            accepted.add(name)
        elif before != after:
            paths = {path for path, _ in before.items() ^ after.items()}
            changed[name] = f"{type(error).__name__} {error}: {sorted(paths)}"
        if error is None or before != after:
            place = None
    return accepted, changed


@every(9)
@pytest.mark.parametrize("reason", REASONS)
def test_a_refused_call_changes_nothing(killed: Place, tmp_path: Path, reason: str) -> None:
    accepted, changed = refused(killed, tmp_path, REASONS[reason])
    assert {name: changed[name] for name in changed.keys() - REASONS[reason].late} == {}
    assert accepted == REASONS[reason].accepts


OF_CLOSED = ("none", "no keys", "wrong keys", "another list of keys", "missing archive")


@every(7)
@pytest.mark.parametrize("reason", OF_CLOSED)
def test_a_closed_log_is_refused_unchanged(closed: Place, tmp_path: Path, reason: str) -> None:
    accepted, changed = refused(closed, tmp_path, REASONS[reason])
    if "keys" in reason:
        assert accepted <= {"forget-node"}  # it reads no archive, so it needs no keys
    if reason == "none":
        assert accepted == frozenset(ENTRANCES) - _NEVER
    assert {name: changed[name] for name in changed.keys() - REASONS[reason].late} == {}


def test_a_change_of_older_manifests_is_refused(closed: Place, tmp_path: Path) -> None:
    place = replace(closed, root=tmp_path / "log", scratch=tmp_path)
    shutil.copytree(closed.root, place.root)
    older_cluster(place)
    before = place.content()
    keys = ["--encryption-keys", place.keys]
    for words in (["decode", "--map", "orders"], ["prune", "--yes"], ["rewrite"]):
        ended = CliRunner().invoke(group, [*keys, words[0], place.store().url, *words[1:]])
        assert "older than the files beside them" in str(ended.exception)
    with pytest.raises(CorruptLog):
        written_by_spark(place)
    changed = {path for path, _ in place.content().items() ^ before.items()}
    assert {path for path in changed if "/rewrite.lock" not in path} == set()


def test_a_missing_node_takes_no_backfill(closed: Place, tmp_path: Path) -> None:
    place = replace(closed, root=tmp_path / "log", scratch=tmp_path)
    shutil.copytree(closed.root, place.root)
    shutil.rmtree(place.root / MAPS / "nodes/n4")
    before = place.content()
    for write in (written_by_spark, imported):
        with pytest.raises(ImapWalError, match="there is no log in default/embedded/nodes/n4"):
            write(place)
    assert place.content() == before


def test_a_restore_over_a_log_changes_nothing(closed: Place, tmp_path: Path) -> None:
    place, run = str(closed.store().url), CliRunner().invoke
    assert run(group, ["backup", place, f"{tmp_path}/backup"]).exit_code == 0
    before = closed.content()
    assert run(group, ["backup-restore", f"{tmp_path}/backup", place]).exit_code == 1
    assert closed.content() == before
