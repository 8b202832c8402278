"""After forget-node: the former writer is fenced, and a new log may use the name."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

import imap_wal
from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.context import Context
from imap_wal.embedded.store import Store
from imap_wal.errors import ImapWalError, InvalidSetting, MissingNode, NoSuchLog
from imap_wal.log import Log
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.placement import Placed
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends import SegmentStore, StorageError, Unavailable
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.cli.conftest import Run
from tests.kit.actors import Interrupted, embedded
from tests.kit.forgetting import acknowledged, write
from tests.kit.nth_call import AtCall
from tests.support import copy_files


def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(str(tmp_path / "objects"))


def abandon(store: Store) -> None:
    store.committer.log.close(clean=False)
    store.changes.openness.closed = True


def folder(store: SegmentStore) -> list[str]:
    return [
        file.path
        for file in store.list("default/embedded/nodes/n2")
        if "writer.lock" not in file.path
    ]


def test_an_old_writer_does_not_confuse_a_new_log(
    tmp_path: Path,
) -> None:
    """The new log has a forgotten name, and is on objects."""
    store = objects(tmp_path)
    log = ClusterLog(Context(store), "default", "embedded")
    gone = embedded(store, "n2", shared=True)
    assert acknowledged(gone, "before")
    rewrite(log, LocalEngine())
    forget_node(log, "n2")
    new = embedded(store, "n2", shared=True, takeover=True)
    assert acknowledged(new, "new") and not acknowledged(gone, "lost")
    new.archive()
    assert acknowledged(new, "later") and not acknowledged(gone, "lost")
    new.close()
    rewrite(log, LocalEngine())
    prune(log)
    assert not acknowledged(gone, "lost")
    with embedded(store, "n2", recovery_mode="absolute") as again:
        assert dict(again.map("m")) == {"before": 1, "new": 1, "later": 1}
        assert not acknowledged(gone, "lost")
    abandon(gone)


def test_forgetting_never_loses_an_acknowledged_commit(
    tmp_path: Path,
) -> None:
    """The commit waits while its node is forgotten and opened again. On objects, at every call of
    the commit."""
    for at in range(20):
        store = objects(tmp_path / str(at))
        slow = Interrupted(store)
        gone = embedded(slow, "n2", shared=True)

        def others(store: LocalObjects = store) -> None:
            log = ClusterLog(Context(store), "default", "embedded")
            rewrite(log, LocalEngine())
            forget_node(log, "n2")
            embedded(store, "n2", shared=True).close()

        slow.at, slow.meanwhile = slow.calls + at, others
        first = acknowledged(gone, "first")
        over = slow.at is not None
        slow.at = None
        if not over:
            assert not acknowledged(gone, "second"), at
        abandon(gone)
        with embedded(store, "n2") as again:
            assert first == ("first" in again.map("m")), at
        if over:
            assert at, "nothing was interrupted"
            return
    pytest.fail("a commit takes more calls than were tried")


def test_a_forgotten_writers_segment_blocks_no_new_log(
    memory: MemoryStore,
) -> None:
    """The writer of the forgotten node creates a segment after all files were deleted. The new log,
    with the same epoch and the same names, then did not open."""
    for opened in (False, True):
        left = MemoryStore(f"begins-{opened}-{memory.url[9:]}")
        slow = Interrupted(left)
        gone = embedded(slow, "n2", shared=True)

        def others(left: MemoryStore = left, opened: bool = opened) -> None:
            forget_node(ClusterLog(Context(left), "default", "embedded"), "n2")
            if opened:
                with embedded(left, "n2", shared=True) as new:
                    new.map("m")["new"] = 1

        slow.when, slow.meanwhile = lambda name, path: name == "open_append", others
        assert not acknowledged(gone, "lost")
        abandon(gone)
        with embedded(left, "n2") as again:
            again.map("m")["more"] = 1
        with embedded(left, "n2", recovery_mode="absolute") as again:
            assert dict(again.map("m")) == ({"new": 1} if opened else {}) | {"more": 1}


@pytest.mark.parametrize("kind", ["append", "objects"])
def test_forgetting_again_changes_nothing_and_says_so(
    memory: MemoryStore, tmp_path: Path, kind: str
) -> None:
    store = memory if kind == "append" else objects(tmp_path)
    log = ClusterLog(Context(store), "default", "embedded")
    with embedded(store, "n2", shared=True) as gone:
        gone.map("m")["a"] = 1
        rewrite(log, LocalEngine())
        gone.map("m")["b"] = 2
        gone.archive()
    first = forget_node(log, "n2", lose=True)
    left = folder(store)
    assert len(left) == (1 if kind == "append" else 2), (
        "the manifest, and the objects that fence the writer"
    )
    assert first.deleted and not first.before and not set(first.deleted) & set(left)
    manifest = NodeManifestLog(Context(store), log.node_folder("n2")).read()[1]
    assert (manifest.forgotten, manifest.directory, manifest.requests, list(manifest.archives)) == (
        True,
        "",
        {},
        [],
    )
    again = forget_node(log, "n2")
    assert again.before and not again.deleted and folder(store) == left
    late = f"{log.node_folder('n2')}/wal/{manifest.epoch - 2:08d}-00000001.wal"
    store.create(late, b"a create that the driver sent twice")
    assert forget_node(log, "n2").deleted == (late,) and folder(store) == left


@pytest.mark.parametrize("kind", ["append", "objects"])
def test_a_reopened_node_can_be_forgotten_again(
    memory: MemoryStore, tmp_path: Path, kind: str
) -> None:
    """The node was forgotten and opened again."""
    store = memory if kind == "append" else objects(tmp_path)
    log = ClusterLog(Context(store), "default", "embedded")
    writers, epochs = [], []
    for number in range(3):
        writers.append(embedded(store, "n2", shared=True))
        epochs.append(writers[-1].committer.log.epoch)
        assert acknowledged(writers[-1], f"k{number}")
        with pytest.raises(InvalidSetting, match="would be lost"):
            forget_node(log, "n2", dry_run=False)
        writers[-1] = embedded(store, "n2", shared=True, takeover=True)
        rewrite(log, LocalEngine())
        forget_node(log, "n2")
    assert epochs == sorted(set(epochs))
    assert len(log.manifest().forgotten) == 3
    with embedded(store, "n2") as last:
        assert not any(acknowledged(writer, "lost") for writer in writers)
        assert dict(last.map("m")) == {f"k{number}": 1 for number in range(3)}
    for writer in writers:
        abandon(writer)


def test_a_log_is_not_opened_while_it_is_being_forgotten(tmp_path: Path) -> None:
    store = objects(tmp_path)
    with embedded(store, "n2") as gone:
        gone.map("m")["a"] = 1
    rewrite(ClusterLog(Context(store), "default", "embedded"), LocalEngine())
    slow = Interrupted(store)

    def fail() -> None:
        raise Unavailable("the storage is away")

    slow.when, slow.meanwhile = lambda name, path: name == "delete" and path.endswith(".wal"), fail
    with pytest.raises(StorageError):
        forget_node(ClusterLog(Context(slow), "default", "embedded"), "n2")
    with pytest.raises(MissingNode, match="is being forgotten"):
        embedded(store, "n2", takeover=True)
    assert forget_node(ClusterLog(Context(store), "default", "embedded"), "n2").deleted
    with embedded(store, "n2") as new:
        assert dict(new.map("m")) == {"a": 1}


def test_another_log_under_a_lost_nodes_name_keeps_its_files(memory: MemoryStore) -> None:
    """Only the registered log is forgotten. The other one may be about to be registered."""
    write(memory, "n2", a=1)
    for file in memory.list("default/embedded/nodes/n2"):
        memory.delete(file.path)
    slow = Interrupted(memory)
    log = ClusterLog(Context(memory), "default", "embedded")
    slow.when = lambda name, path: (
        name == "create" and path.startswith("default/embedded/manifest/")
    )
    slow.meanwhile = lambda: forget_node(log, "n2", lose=True)
    with embedded(slow, "n2", recovery_policy="partial") as new:
        new.map("m")["b"] = 2
    with embedded(memory, "n2") as again:
        assert dict(again.map("m")) == {"b": 2}


def test_a_cluster_manifest_older_than_forgetting_is_refused(
    memory: MemoryStore,
) -> None:
    """It registers a log that was forgotten; without entries, that log could look like an empty
    one."""
    write(memory, "n1", a=1)
    write(memory, "n2", b=2)
    copy = {file.path: memory.read(file.path) for file in memory.list("default/embedded/manifest")}
    forget_node(ClusterLog(Context(memory), "default", "embedded"), "n2", lose=True)
    for file in memory.list("default/embedded/manifest"):
        memory.delete(file.path)
    for path, data in copy.items():
        memory.create(path, data)
    for node in ("n1", "n2"):
        with pytest.raises(ImapWalError, match="older than the files"):
            embedded(memory, node)


def test_a_record_log_can_reuse_a_forgotten_name(memory: MemoryStore) -> None:
    def create() -> Log:
        return imap_wal.log.create("memory://", storage=memory, preallocate=False)

    with create() as log:
        first = log.append("m", (b"a", b"1"))
    forget_node(ClusterLog(Context(memory), "default", "log"), "log", lose=True)
    with pytest.raises(NoSuchLog):
        imap_wal.log.open("memory://", storage=memory)
    with create() as log:
        assert log.append("m", (b"b", b"2")) > first
        assert [record.entry.key for record in log.read()] == [b"b"]


def test_commands_ignore_a_forgotten_nodes_folder(run: Run, tmp_path: Path) -> None:
    """No command treats the folder as a node."""
    store = objects(tmp_path)
    url = store.url
    with embedded(store, "n1", shared=True) as left, embedded(store, "n2", shared=True) as gone:
        left.map("m")["a"] = 1
        gone.map("m")["b"] = 2
    assert run("rewrite", url).code == 0
    assert run("forget-node", url, "--node", "n2", "--yes").code == 0
    assert folder(store)
    assert [node["node"] for node in run("ls", url, "-o", "json").json["nodes"]] == ["n1"]
    for words in (
        ("verify",),
        ("stat",),
        ("doctor",),
        ("restore",),
        ("prune", "--yes"),
        ("archive",),
    ):
        ended = run(*words, url)
        assert ended.code == 0, (words, ended.out, ended.err)
        assert "stat" in words or "n2" not in ended.out, (
            words
        )  # it names the node that wrote the entries of the snapshot
    copy = f"objects+file://{tmp_path}/copy"
    assert run("repair", url, "--to", copy, "--mode", "salvage").code == 0
    for place in (store, LocalObjects(str(tmp_path / "copy"))):
        with embedded(place, "n1") as opened:
            assert dict(opened.map("m")) == {"a": 1, "b": 2}
    again = run("forget-node", url, "--node", "n2")
    assert again.code == 0 and "was forgotten by an earlier run" in again.out
    assert run("forget-node", url, "--node", "n3", "--yes").code == 1


def test_the_command_line_forgets_a_node_without_a_folder(run: Run, tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        with imap_wal.open(str(tmp_path / "log"), node=node, preallocate=False) as store:
            store.map("m")[node] = 1
    shutil.rmtree(tmp_path / "log/default/embedded/nodes/n2")
    assert run("forget-node", tmp_path / "log", "--node", "n2", "--lose", "--yes").code == 0
    with imap_wal.open(str(tmp_path / "log"), node="n1") as store:
        assert dict(store.map("m")) == {"n1": 1}


def test_dump_misses_no_entry_of_a_node_forgotten_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read the snapshots before there was one, and then no log of the node."""
    original = MemoryStore("dumped")
    write(original, "n1", first=1)
    write(original, "n2", second=2)
    ends = set()
    for number in itertools.count(step=6):
        place = copy_files(original)

        def forget(place: MemoryStore = place) -> None:
            log = ClusterLog(Context(place), "default", "embedded")
            rewrite(log, LocalEngine(Settings()))
            forget_node(log, "n2")

        gate = AtCall(place, number, forget)
        monkeypatch.setattr(
            "imap_wal.context.open_place", lambda place, gate=gate, **_: Placed(gate, place)
        )
        ended = run("dump", place.url)
        assert ended.code or "second" in ended.out, f"call {number}"
        ends.add(ended.code)
        if gate.calls <= number:
            break
    assert ends == {0, 1}
