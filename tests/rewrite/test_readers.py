"""What a registered reader has not read stays, whatever snapshots cover."""

from __future__ import annotations

from pathlib import Path

import pytest

import imap_wal
from imap_wal.clock import SeededRandomness, SystemClock
from imap_wal.context import Context
from imap_wal.errors import InvalidSetting
from imap_wal.format import Position
from imap_wal.manifest import readers
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import SMALL, append, cluster, node
from tests.support import FakeClock

CLOCK_AND_RANDOMNESS = (cluster(MemoryStore("none")).clock, SeededRandomness(3))


def written(memory: MemoryStore) -> tuple[ClusterLog, list[Position]]:
    """A log of three sealed segments in a snapshot, and the end of each."""
    log, ends = node(memory), []
    for number in (1, 2, 3):
        append(log, put("a", number, (1, 1, 1, number)))
        ends.append(log.end)
        log.rotate()
    append(log, put("b", "1", (1, 1, 1, 9)))
    rewrite(cluster(memory), LocalEngine(SMALL), skew_ms_max=2**60)
    return cluster(memory), ends


def reader(memory: MemoryStore, name: str) -> readers.Reader:
    return readers.Reader(cluster(memory).context, cluster(memory).folder, name)


def test_prune_keeps_what_a_reader_has_not_read(memory: MemoryStore) -> None:
    log, ends = written(memory)
    daily = reader(memory, "reports/daily")
    daily.begin({})
    assert prune(log).segments == ()
    daily.advance({"n1": ends[0]})
    reader(memory, "other").begin({"n1": ends[1]})
    assert len(prune(log, dry_run=True).segments) == len(prune(log).segments) == 1
    assert log.node("n1").manifest.removed == ends[0]
    daily.advance({"n1": ends[2]})
    daily.advance({"n1": ends[0]})  # never back
    assert len(prune(log).segments) == 1
    assert readers.forget(log.context, log.folder, "other")
    assert len(prune(log).segments) == 1
    assert list(readers.readers_of(memory, log.folder)) == ["reports/daily"]


def test_a_node_that_a_reader_does_not_know_is_kept(memory: MemoryStore) -> None:
    log, ends = written(memory)
    reader(memory, "r").begin({"n2": ends[2]})
    assert prune(log).segments == ()


def test_a_compaction_warns_once_of_a_stale_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with imap_wal.open(str(tmp_path), auto_rewrite_percentage=0) as store:
        old = FakeClock(SystemClock().now_ms() - 8 * 86_400_000)
        storage = open_store(str(tmp_path))
        readers.Reader(
            Context(storage, clock=old, randomness=SeededRandomness(1)), "default/embedded", "gone"
        ).begin({})
        for number in range(3):
            store.map("orders")["k"] = number
            store.compact()
    assert caplog.text.count("imap-wal prune --forget-reader gone") == 1


def test_a_forgotten_reader_has_to_begin_again(memory: MemoryStore) -> None:
    log, ends = written(memory)
    reader(memory, "r").begin({})
    assert readers.forget(log.context, log.folder, "r")
    assert not readers.forget(log.context, log.folder, "r")
    assert len(prune(log, dry_run=True).segments) == 3
    with pytest.raises(InvalidSetting, match="start the query again"):
        reader(memory, "r").advance({"n1": ends[0]})
    reader(memory, "r").begin({"n1": ends[0]})
    assert len(prune(log, dry_run=True).segments) == 1
