"""forget-node: no process waits any longer for a forgotten node, and nothing is lost by
accident."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import imap_wal
from imap_wal.agent.membership.forget_node import Loss, forget_node
from imap_wal.context import Context, open_context
from imap_wal.errors import Fenced, ImapWalError, InvalidSetting, MissingNode
from imap_wal.layout import Identity
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import RecoveryPolicy, Settings
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log
from storage_backends import StorageError, Unavailable
from storage_backends.memory import MemoryStore
from tests.cli.conftest import Run
from tests.kit.actors import Interrupted
from tests.kit.effort import step, thorough
from tests.kit.forgetting import write


def test_a_node_with_uncovered_entries_is_not_forgotten(memory: MemoryStore) -> None:
    """No snapshot covers the entries."""
    write(memory, "n1", a=1)
    write(memory, "n2", b=2)
    log = ClusterLog(Context(memory), "default", "embedded")
    with pytest.raises(InvalidSetting, match="would be lost"):
        forget_node(log, "n2")
    rewrite(log, LocalEngine())
    write(memory, "n2", c=3)
    with pytest.raises(InvalidSetting, match="would be lost"):
        forget_node(log, "n2")
    assert log.state().manifest.nodes.keys() == {"n1", "n2"}


def test_a_covered_node_is_forgotten_and_nothing_is_lost(memory: MemoryStore) -> None:
    write(memory, "n1", a=1, x=1)
    with imap_wal.open("memory://", node="n2", storage=memory, preallocate=False) as store:
        del store.map("m")["x"]
        store.map("m")["b"] = 2
    log = ClusterLog(Context(memory), "default", "embedded")
    rewrite(log, LocalEngine())
    assert forget_node(log, "n2", dry_run=True).deleted
    report = forget_node(log, "n2")
    assert report.deleted and report.lost == Loss()
    assert log.state().manifest.nodes.keys() == {"n1"} and not log.state().missing
    with imap_wal.open("memory://", node="n1", storage=memory) as store:
        assert dict(store.map("m")) == {"a": 1, "b": 2}
    write(memory, "n2", new=4)  # a new log under the old name
    with imap_wal.open("memory://", node="n1", storage=memory) as store:
        assert dict(store.map("m")) == {"a": 1, "b": 2, "new": 4}


def test_a_lost_log_is_forgotten_only_on_request(
    memory: MemoryStore,
) -> None:
    """The log does not return."""
    write(memory, "n1", a=1)
    write(memory, "n2", b=2)
    kept = {file.path: memory.read(file.path) for file in memory.list("default/embedded/nodes/n2")}
    for path in kept:
        memory.delete(path)
    log = ClusterLog(Context(memory), "default", "embedded")
    with pytest.raises(MissingNode):
        log.state().demand(imap_wal.RecoveryPolicy.FULL)
    with pytest.raises(InvalidSetting, match="would be lost"):
        forget_node(log, "n2")
    forget_node(log, "n2", lose=True)
    with imap_wal.open("memory://", node="n1", storage=memory) as store:
        assert dict(store.map("m")) == {"a": 1}
    for path, data in kept.items():
        memory.create(path, data)
    with pytest.raises(MissingNode, match="was forgotten"):
        imap_wal.open("memory://", node="n2", storage=memory)


def test_a_writer_that_was_open_is_shut_out(memory: MemoryStore) -> None:
    write(memory, "n1", a=1)
    with imap_wal.open(
        "memory://", node="n2", storage=memory, shared=True, preallocate=False
    ) as store:
        store.map("m")["b"] = 2
        forget_node(ClusterLog(Context(memory), "default", "embedded"), "n2", lose=True)
        with pytest.raises(ImapWalError):
            store.map("m")["c"] = 3
        store.committer.log.close(clean=False)
        store.changes.openness.closed = True


@thorough
def test_a_takeover_while_forgetting_loses_nothing_acknowledged(
    memory: MemoryStore,
) -> None:
    """A writer takes the node over meanwhile."""
    write(memory, "n1", a=1)
    write(memory, "n2", old=1)
    rewrite(ClusterLog(Context(memory), "default", "embedded"), LocalEngine())
    refused = forgotten = 0
    for at in range(200):
        left = MemoryStore(f"forget-{at}-{memory.url[9:]}")
        for file in memory.list(""):
            left.create(file.path, memory.read(file.path))
        slow = Interrupted(left)
        acknowledged = []

        def take_over(left: MemoryStore = left, acknowledged: list[str] = acknowledged) -> None:
            try:
                with imap_wal.open(
                    "memory://",
                    node="n2",
                    storage=left,
                    takeover=True,
                    shared=True,
                    preallocate=False,
                ) as store:
                    store.map("m")["new"] = 2
                    acknowledged.append("new")
            except ImapWalError:
                pass

        slow.at, slow.meanwhile = at, take_over
        try:
            forget_node(ClusterLog(Context(slow), "default", "embedded"), "n2")
            forgotten += 1
        except ImapWalError:
            refused += 1
        with imap_wal.open("memory://", node="n1", storage=left) as store:
            found = dict(store.map("m"))
        assert found["a"] == found["old"] == 1, at
        assert not acknowledged or found["new"] == 2, f"taken over before call {at}"
        if slow.calls <= at:
            break
    assert refused and forgotten


def test_a_failed_forgetting_is_completed_by_the_next(memory: MemoryStore) -> None:
    """Forgetting fails at any call."""
    write(memory, "n1", a=1)
    write(memory, "n2", b=2)
    rewrite(ClusterLog(Context(memory), "default", "embedded"), LocalEngine())
    for at in range(0, 300, min(step(), 4)):
        left = MemoryStore(f"fails-{at}-{memory.url[9:]}")
        for file in memory.list(""):
            left.create(file.path, memory.read(file.path))
        slow = Interrupted(left)

        def fail() -> None:
            raise Unavailable("the storage is away")

        slow.at, slow.meanwhile = at, fail
        try:
            forget_node(ClusterLog(Context(slow), "default", "embedded"), "n2")
        except (ImapWalError, StorageError):
            if left.list("default/embedded/nodes/n2"):
                forget_node(ClusterLog(Context(left), "default", "embedded"), "n2")
        (last,) = [
            file
            for file in left.list("default/embedded/nodes/n2")
            if "writer.lock" not in file.path
        ]
        assert "/manifest/" in last.path and last.size < 1000
        with imap_wal.open("memory://", node="n1", storage=left) as store:
            assert dict(store.map("m")) == {"a": 1, "b": 2}
        if slow.calls <= at:
            return
    pytest.fail("forgetting takes more calls than were tried")


@pytest.mark.parametrize("known", ["forgotten", "replaced"])
def test_a_reused_name_begins_above_former_sessions(memory: MemoryStore, known: str) -> None:
    """A new log takes the name of a former node. A member continues in its incarnation and
    partition version, so only the session shows that its change is the newer one."""
    node = Identity("default", "c", "n1")

    def opened() -> NodeLog:
        settings = Settings(preallocate=False, recovery_policy=RecoveryPolicy.PARTIAL)
        return open_node_log(LogContext(Context(memory), node, settings))

    log = opened()
    given = [log.new_session(f"plugin-{start}") for start in range(3)]
    log.close()
    if known == "forgotten":
        forget_node(ClusterLog(Context(memory), "default", "c"), "n1")
    else:
        for file in memory.list(node.node_folder):
            memory.delete(file.path)
    again = opened()
    assert again.new_session("plugin-0") > max(given)
    again.close()


@pytest.mark.parametrize("lost", ["every manifest", "the cluster's manifests"])
def test_a_log_whose_manifests_are_gone_is_refused(memory: MemoryStore, lost: str) -> None:
    write(memory, "n1", a=1)
    rewrite(ClusterLog(Context(memory), "default", "embedded"), LocalEngine())
    for file in memory.list(""):
        gone = "/manifest/" in file.path and (
            lost == "every manifest" or "/nodes/" not in file.path
        )
        if gone or file.path.endswith(".wal"):
            memory.delete(file.path)
    with pytest.raises(ImapWalError, match=r"older than the files|missing"):
        imap_wal.open("memory://", node="n1", storage=memory)


def test_a_fork_keeps_its_parents_log_and_lock(tmp_path: Path) -> None:
    """A forked child closes neither of them."""
    with imap_wal.open(str(tmp_path), node="n1") as store:
        m = store.map("m")
        child = os.fork()
        if child == 0:
            refused = 0
            for change in (lambda: m.put("child", 1), store.close):
                try:
                    change()
                except Fenced:
                    refused += 1
                except BaseException:
                    os._exit(3)
            os._exit(0 if refused == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "put and close are refused"
        store.map("m")["parent"] = 1
        with pytest.raises(imap_wal.WriterLocked):
            imap_wal.open(str(tmp_path), node="n1")
    with imap_wal.open(str(tmp_path), node="n1") as store:
        assert dict(store.map("m")) == {"parent": 1}


def test_forget_node_on_the_command_line(run: Run, tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        with imap_wal.open(str(tmp_path / "log"), node=node, preallocate=False) as store:
            store.map("m")[node] = 1
    url = str(tmp_path / "log")
    assert run("forget-node", url, "--yes").code == 2
    assert run("forget-node", url, "--node", "n2", "--yes").code == 2, "entries would be lost"
    assert run("rewrite", url).code == 0
    assert run("forget-node", url, "--node", "n2", "--dry-run").code == 0
    ended = run("forget-node", url, "--node", "n2", "--yes", "-o", "json")
    assert (
        ended.code == 0
        and ended.json["nodes"][0]["node"] == "n2"
        and ended.json["nodes"][0]["deleted"]
    )
    assert [node["node"] for node in run("ls", url, "-o", "json").json["nodes"]] == ["n1"]


def uncovered(root: Path) -> None:
    """Of n2, 3 entries are covered, 10 are in an archive, and 5 in a segment."""
    for node in ("n1", "n2"):
        with imap_wal.open(str(root), node=node, shared=True, preallocate=False) as store:
            store.map("m").update({f"{node}-{number}": number for number in range(3)})
    rewrite(ClusterLog(open_context(str(root)), "default", "embedded"), LocalEngine())
    with imap_wal.open(str(root), node="n2", shared=True, preallocate=False) as store:
        store.map("m").update({f"a{number}": number for number in range(10)})
        store.archive()
        store.map("m").update({f"b{number}": number for number in range(5)})


def test_forget_node_names_the_process_that_writes_the_log(run: Run, tmp_path: Path) -> None:
    """An operator who names the wrong node must see that before the log is deleted."""
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url, node="n1") as store:
        store.map("m")["a"] = 1
        for options in (("--dry-run",), ()):  # without a terminal, it asks in vain
            tried = run("forget-node", url, "--node", "n1", "--lose", *options)
            assert f"node 'n1' is being written by imap_wal.open('{url}')" in tried.err
    tried = run("forget-node", url, "--node", "n1", "--lose", "--dry-run")
    assert "is being written" not in tried.err


def test_a_forgotten_log_that_returns_is_called_forgotten(run: Run, tmp_path: Path) -> None:
    """The next start does not recover it: `doctor` must not promise that."""
    url = str(tmp_path / "log")
    for node in ("n1", "n2"):
        with imap_wal.open(url, node=node, shared=True, preallocate=False) as store:
            store.map("m")[node] = 1
    folder = tmp_path / "log" / "default" / "embedded" / "nodes" / "n2"
    folder.rename(tmp_path / "away")
    assert run("forget-node", url, "--node", "n2", "--lose", "--yes").code == 0
    (tmp_path / "away").rename(folder)
    states = {each["node"]: each["state"] for each in run("ls", url, "-o", "json").json["nodes"]}
    assert states == {"n1": "closed", "n2": "forgotten"}
    said = run("doctor", url).out
    assert "default/embedded/nodes/n2 has the log of node 'n2' again, which was forgotten" in said
    assert "the next start recovers" not in said


def test_forget_node_says_how_many_entries_are_lost(run: Run, tmp_path: Path) -> None:
    url = tmp_path / "log"
    uncovered(url)
    dry = run("forget-node", url, "--node", "n2", "--lose", "--dry-run", "-o", "json")
    lost = dry.json["nodes"][0]["lost"]
    assert dry.code == 0 and (lost["entries"], lost["whole"], len(lost["files"])) == (15, True, 2)
    assert run("forget-node", url, "--node", "n2", "--lose", "--yes").out.split()[-2:] == [
        "15",
        "-",
    ]


def test_a_losing_dry_run_ends_like_the_run(run: Run, tmp_path: Path) -> None:
    """Entries would be lost."""
    uncovered(tmp_path / "log")
    words = "forget-node", tmp_path / "log", "--node", "n2"
    dry, asked, done = run(*words, "--dry-run"), run(*words), run(*words, "--yes")
    assert dry.code == asked.code == done.code == 2
    assert dry.err == asked.err == done.err and "15 entries" in done.err, (
        "nothing is asked that is refused anyway"
    )
    assert "15" in dry.out and not done.out
    assert run("forget-node", tmp_path / "log", "--node", "n1", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("gone", "said"),
    [("the manifest", "at least 5"), ("the folder", "unknown"), ("the segments", "at least 10")],
)
def test_a_damaged_log_is_not_reported_as_empty(
    run: Run, tmp_path: Path, gone: str, said: str
) -> None:
    """The log is not whole: its entries are not reported as none."""
    url = tmp_path / "log"
    uncovered(url)
    folder = url / "default/embedded/nodes/n2"
    if gone == "the manifest":
        shutil.rmtree(folder / "manifest")
    elif gone == "the folder":
        shutil.rmtree(folder)
    else:
        shutil.rmtree(folder / "wal")
    words = "forget-node", url, "--node", "n2"
    refused = run(*words, "--dry-run")
    assert refused.code == 2 and said.replace("unknown", "an unknown number of") in refused.err
    ended = run(*words, "--lose", "--yes")
    assert ended.code == 0 and said in ended.out
