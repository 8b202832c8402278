"""forget-node: a node that is gone for good is no longer waited for, and nothing is lost by
accident."""

from __future__ import annotations

from pathlib import Path

import pytest

import imap_wal
from imap_wal.errors import ImapWalError, InvalidSetting, MissingNode
from imap_wal.restore import ClusterLog
from rewrite_cli.forget import forget_node
from rewrite_cli.local import LocalEngine
from rewrite_cli.rewriter import rewrite
from storage_backends.memory import MemoryStore
from tests.cli.conftest import Run


def write(store: MemoryStore, node: str, **entries: int) -> None:
    with imap_wal.open("memory://", node=node, storage=store, preallocate=False) as opened:
        opened.map("m").update(entries)


def test_a_node_with_entries_that_no_snapshot_covers_is_not_forgotten(memory: MemoryStore) -> None:
    write(memory, "n1", a=1)
    write(memory, "n2", b=2)
    log = ClusterLog(memory, "default", "embedded")
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
    log = ClusterLog(memory, "default", "embedded")
    rewrite(log, LocalEngine())
    assert forget_node(log, "n2", dry_run=True).deleted
    report = forget_node(log, "n2")
    assert report.deleted and not report.uncovered_files
    assert log.state().manifest.nodes.keys() == {"n1"} and not log.state().missing
    with imap_wal.open("memory://", node="n1", storage=memory) as store:
        assert dict(store.map("m")) == {"a": 1, "b": 2}
    write(memory, "n2", new=4)  # a new log under the old name
    with imap_wal.open("memory://", node="n1", storage=memory) as store:
        assert dict(store.map("m")) == {"a": 1, "b": 2, "new": 4}


def test_a_lost_log_is_forgotten_only_when_its_loss_is_asked_for_and_does_not_come_back(memory: MemoryStore) -> None:
    write(memory, "n1", a=1)
    write(memory, "n2", b=2)
    kept = {file.path: memory.read(file.path) for file in memory.list("default/embedded/nodes/n2")}
    for path in kept:
        memory.delete(path)
    log = ClusterLog(memory, "default", "embedded")
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
    with imap_wal.open("memory://", node="n2", storage=memory, shared=True, preallocate=False) as store:
        store.map("m")["b"] = 2
        forget_node(ClusterLog(memory, "default", "embedded"), "n2", lose=True)
        with pytest.raises(ImapWalError):
            store.map("m")["c"] = 3
        store.committer.log.close(clean=False)
        store.closed = True


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
    assert ended.code == 0 and ended.json["nodes"][0]["node"] == "n2" and ended.json["nodes"][0]["deleted"]
    assert [node["node"] for node in run("ls", url, "-o", "json").json["nodes"]] == ["n1"]
