"""An agent knows which registered readers do not move although there is more to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.agent.membership.reader_stalls import ReaderStalls, Stall
from imap_wal.context import open_context
from imap_wal.manifest.readers import Reader, forget
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.cli import group
from storage_backends import SegmentStore, open_store
from tests.agent.harness import config, plugin, serving
from tests.histories import put
from tests.kit.logs import append, cluster, node
from tests.support import FakeClock, eventually

DAY_S = 86_400


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return open_store(str(tmp_path / "log"))


def test_an_agent_shows_a_reader_that_does_not_move(tmp_path: Path) -> None:
    settings = config(tmp_path, lifetime_timeout_s=1)
    log = ClusterLog(open_context(settings.url), "default", "c")
    with serving(settings) as agent, plugin(settings) as member:
        lake = Reader(log.context, log.folder, "lake")
        lake.begin({})

        def is_stalled() -> bool:
            assert member.put(a="1")[0] == "ack"
            return agent.snapshot().stalled_s.get("lake", 0) > 0

        eventually(is_stalled, "it has to read")
        now = agent.snapshot()
        assert now.unread_bytes["lake"] > 0 and now.tables_stalled_s is None
        lake.advance(log.ends())
        eventually(lambda: agent.snapshot().unread_bytes == {"lake": 0}, "it has read everything")
        assert agent.snapshot().stalled_s == {"lake": 0.0}
        assert forget(log.context, log.folder, "lake")
        eventually(lambda: agent.snapshot().stalled_s == {}, "it was forgotten")


def test_a_stall_begins_with_the_first_unread_change(store: SegmentStore) -> None:
    """Not with the last report, before an idle time. An agent that just started waits for a
    change."""
    clock, own = FakeClock(), node(store)
    log = cluster(store, clock)
    append(own, put("a", "1", (1, 1, 1, 1)))
    lake = Reader(log.context, log.folder, "lake")
    lake.begin(log.ends())
    clock.advance(5 * DAY_S)
    level = ReaderStalls().newer(log, "n1")
    assert level.streams == {"lake": Stall(0, 0)}
    clock.advance(60)
    append(own, put("a", "2", (1, 1, 1, 2)))
    stalled = level.newer(log, "n1")
    assert stalled.streams["lake"].since_ms == clock.now_ms()
    assert 0 < stalled.streams["lake"].unread_bytes < 200
    since_ms = clock.now_ms()
    clock.advance(DAY_S)
    append(own, put("a", "3", (1, 1, 1, 3)))
    later = stalled.newer(log, "n1")
    assert later.streams["lake"].since_ms == since_ms
    started = ReaderStalls().newer(log, "n1")
    assert started.streams["lake"].since_ms == 0
    clock.advance(60)
    append(own, put("a", "4", (1, 1, 1, 4)))
    assert started.newer(log, "n1").streams["lake"].since_ms == clock.now_ms()
    middle = log.ends()
    append(own, put("a", "5", (1, 1, 1, 5)))
    lake.advance(middle)
    moved = later.newer(log, "n1").streams["lake"]
    assert moved.since_ms == 0, "it moves, although it has not read everything"
    assert 0 < moved.unread_bytes < stalled.streams["lake"].unread_bytes * 2


def test_a_last_batch_that_is_not_reported_is_no_stall(store: SegmentStore) -> None:
    """Spark reports a batch when the next one begins. In an idle log, that is much later."""
    clock, own = FakeClock(), node(store)
    log = cluster(store, clock)
    append(own, put("a", "1", (1, 1, 1, 1)))
    first = log.ends()
    seen = ReaderStalls()
    lake = Reader(log.context, log.folder, "lake")
    lake.begin({})
    for _ in range(3):
        clock.advance(60)
        seen = seen.newer(log, "n1")
    append(own, put("a", "2", (1, 1, 1, 2)))
    clock.advance(30)
    lake.advance(first)
    for _ in range(5):
        clock.advance(DAY_S)
        seen = seen.newer(log, "n1")
        assert seen.streams["lake"].unread_bytes > 0
        assert seen.streams["lake"].since_ms == 0
    append(own, put("a", "3", (1, 1, 1, 3)))
    clock.advance(60)
    seen = seen.newer(log, "n1")
    assert seen.streams["lake"].since_ms == clock.now_ms()


def test_a_table_stalls_when_there_is_a_newer_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "log"
    log = ClusterLog(open_context(str(root)), "default", "embedded")

    def run(*words: str) -> None:
        assert CliRunner().invoke(group, list(words)).exit_code == 0

    def change(value: int) -> None:
        with imap_wal.open(root) as embedded:
            embedded.map("orders")["a"] = value
        run("rewrite", str(root))

    change(1)
    run("publish", str(root), "--map", "orders", "--delta")
    (name,) = log.nodes()
    seen = ReaderStalls().newer(log, name)
    assert (seen.streams, seen.tables) == ({}, {"delta orders": Stall(0, 0)})
    change(2)
    assert seen.newer(log, name).tables["delta orders"].since_ms > 0
    run("publish", str(root), "--map", "orders", "--delta")
    assert seen.newer(log, name).tables["delta orders"].since_ms == 0


def test_a_damaged_reader_leaves_the_stalls_as_they_were(store: SegmentStore) -> None:
    """An error would also end the thread that renews the agent's sign of life."""
    append(node(store), put("a", "1", (1, 1, 1, 1)))
    log = cluster(store)
    Reader(log.context, log.folder, "lake").begin({})
    seen = ReaderStalls().newer(log, "n1")
    (file,) = store.list(f"{log.folder}/readers/lake")
    store.delete(file.path)
    store.create(file.path, b"{")
    assert seen.newer(cluster(store), "n1") is seen
