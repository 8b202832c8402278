"""`prune` and retention remove what snapshots cover, and nothing else."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from imap_wal import entry
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.entry import MAP
from imap_wal.errors import (
    LostRace,
)
from imap_wal.format import ENTRIES, START, Position
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.removal import remove_covered
from imap_wal.retention.snapshots import ORPHAN_MS
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import Result, RewritePlan, prepare
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.publish import confirm, publish
from imap_wal.rewrite.run import rewrite
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore, open_store
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.effort import every, share
from tests.kit.logs import SMALL, append, cluster, node, values, view
from tests.kit.rewrites import ENGINE, HOUR_MS, archive, run, snapshot
from tests.support import FakeClock, segments


def node_again(store: MemoryStore) -> NodeLog:
    from imap_wal.clock import SeededRandomness
    from imap_wal.layout import Identity
    from imap_wal.write.opening import open_node_log

    return open_node_log(
        LogContext(
            Context(store, clock=FakeClock(), randomness=SeededRandomness(77)),
            Identity("ns", "c", "n1"),
            SMALL,
        ),
        holder="the test",
        takeover=True,
    )


def test_prune_removes_what_is_covered_and_nothing_else(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(3):
        append(
            log,
            put("a", number, (1, 1, 5, number + 1)),
            put("a", number, (1, 1, 5, 10 + number), "other"),
        )
        log.rotate()
    archive(memory, log)
    append(log, put("b", "1", (1, 1, 5, 20)))
    log.rotate()
    append(log, put("b", "2", (1, 1, 5, 21)))
    log.rotate()
    append(log, put("b", "3", (1, 1, 5, 22)))
    run(memory, maps=["orders"])
    dry = prune(cluster(memory), dry_run=True)
    files = {file.path for file in memory.list("")}
    report = prune(cluster(memory))
    left = {file.path for file in memory.list("")}
    assert (
        replace(dry, dry_run=False) == report
        and len(report.archives) == 1
        and len(report.segments) == 2
    )
    assert {path for path in files - left if "manifest" not in path} == {
        *report.archives,
        *report.segments,
    }
    assert len(segments(memory)) == 1, "the newest segment is its owner's"
    assert values(view(memory)) == {"a": "2", "b": "3"} and values(view(memory), "other") == {
        "a": "2"
    }
    log.close(clean=False)
    again = node_again(memory)
    assert again.requests[5] == 22
    append(again, put("b", "4", (1, 1, 6, 1)))
    assert len(prune(cluster(memory)).segments) == 1, "sealed by now"
    assert prune(cluster(memory)).bytes == 0
    assert values(view(memory))["b"] == "4"


def test_a_segment_with_an_entry_of_another_map_is_kept(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(3):
        append(
            log,
            put("a", number, (1, 1, 1, number + 1)),
            *([put("x", "1", (1, 1, 1, 9), "other")] if number == 1 else []),
        )
        log.rotate()
    append(log, put("a", "3", (1, 1, 1, 4)))
    run(memory, maps=["orders"])
    assert len(prune(cluster(memory)).segments) == 1
    assert values(view(memory)) == {"a": "3"} and values(view(memory), "other") == {"x": "1"}


def removable(store: MemoryStore) -> set[str]:
    """What may be removed, judged from the bytes of the files and the marks alone: an archive at
    or below its map's mark; a sealed segment of which every map is covered, if none before it is
    kept."""
    state = cluster(store).state()
    node_state, marks = state.nodes["n1"], state.covered("n1")
    found = {
        archive.path
        for archive in node_state.manifest.archives
        if archive.last <= marks.get(archive.map, START)
    }
    for segment in node_state.segments[:-1]:
        lasts: dict[str, Position] = {}
        for frame in SegmentReader(store, segment.path).whole_frames():
            for index, row in enumerate(entry.rows(frame.payload) if frame.kind == ENTRIES else ()):
                lasts[row[MAP]] = Position(segment.epoch, segment.number, frame.offset, index)
        if not lasts or any(last > marks.get(name, START) for name, last in lasts.items()):
            break
        found.add(segment.path)
    return found


@every(7)
@pytest.mark.parametrize("history", range(share(12, ci=34)))
def test_log_file_is_removed_once_snapshots_cover_every_map(
    memory: MemoryStore, history: int, seed: int
) -> None:
    """A file of the log is removed when snapshots cover every map in it, and not before. Each map
    has its own low-water marks: a map that is rewritten often does not remove the entries of
    others, and a map that is never rewritten keeps its segments."""
    chance = random.Random(seed + history)
    log, request = node(memory), 0
    expected: dict[str, dict[str, str]] = {name: {} for name in "abc"}
    pruned = 0
    for step in range(25):
        rows = []
        for name in chance.sample("abc", chance.choice((1, 1, 2, 3))):
            request += 1
            key = f"k{request % 4}"
            rows.append(put(key, None if request % 7 == 0 else request, (1, 1, 1, request), name))
            expected[name].pop(key, None)
            if request % 7:
                expected[name][key] = str(request)
        append(log, *rows)
        if chance.random() < 0.6:
            log.rotate()
        if chance.random() < 0.1:
            archive(memory, log)
        if chance.random() < 0.1:
            log.close(clean=chance.random() < 0.5)
            log = node(memory)
        if chance.random() < 0.25 or step == 24:
            known = {row[MAP] for changes in cluster(memory).changes() for row in changes.rows}
            run(
                memory,
                maps=sorted(known)
                if step == 24
                else chance.sample(sorted(known), chance.randrange(1, len(known) + 1)),
            )
            before, due = (
                {
                    file.path
                    for file in memory.list("ns/c/nodes/n1")
                    if file.path.endswith((".wal", ".parquet"))
                },
                removable(memory),
            )
            prune(cluster(memory))
            assert before - {file.path for file in memory.list("")} == due, f"step {step}"
            pruned += len(due)
            made = view(memory)
            assert {name: values(made, name) for name in "abc"} == expected, f"step {step}"
    assert pruned > 0


def aged(store: SegmentStore, path: str, seconds: float) -> None:
    """Make a file that much older."""
    file = Path(store.url.removeprefix("file://")) / path
    then = file.stat().st_mtime - seconds
    os.utime(file, (then, then))


def real_log(store: SegmentStore, offset_ms: int = 0) -> ClusterLog:
    return ClusterLog(Context(store, clock=SystemClock(offset_ms)), "ns", "c")


def test_prune_removes_only_rewrites_that_died(tmp_path: Path) -> None:
    """A rewrite in progress keeps its files."""
    store = open_store(str(tmp_path))
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    rewrite(real_log(store), ENGINE)
    first = real_log(store).manifest().snapshots["orders"].paths
    append(log, put("a", "2", (1, 1, 1, 2)))
    rewrite(real_log(store), ENGINE)
    young = "ns/c/snapshot/orders/00000077/part-00000-00000-x.parquet"
    store.create(young, b"unfinished")
    # A pruner's own clock does not matter.
    assert prune(real_log(store, 48 * HOUR_MS)).snapshot_files == first
    aged(store, young, ORPHAN_MS / 1000 + 60)
    assert prune(real_log(store, -48 * HOUR_MS), dry_run=False).snapshot_files == (young,)
    append(log, put("a", "3", (1, 1, 1, 3)))
    rewrite(real_log(store), ENGINE)
    assert values(view(store)) == {"a": "3"}, "later rewrites are not below the floor"


def test_a_rewrite_that_a_prune_treated_as_dead_publishes_nothing(tmp_path: Path) -> None:
    """It took more than a day: its files are deleted, and it must not name them."""
    store = open_store(str(tmp_path))
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2), "other"))
    log.rotate()
    append(log, put("c", "1", (1, 1, 1, 3)))

    class Slow(LocalEngine):
        def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
            result = super().run(plan, log)
            for file in store.list("ns/c/snapshot"):
                aged(store, file.path, ORPHAN_MS / 1000 + 60)
            assert len(prune(real_log(store)).snapshot_files) == 2
            return result

    with pytest.raises(LostRace, match="treated this rewrite"):
        rewrite(real_log(store), Slow(SMALL))
    assert real_log(store).manifest().snapshots == {}
    prune(real_log(store))
    assert values(view(store)) == {"a": "1", "c": "1"}


def test_the_floor_is_checked_in_the_compare_and_swap(tmp_path: Path) -> None:
    """The prune runs after the parts were read, and before the manifest is published."""
    store = open_store(str(tmp_path))
    append(node(store), put("a", "1", (1, 1, 1, 1)))
    log = real_log(store)
    plan = prepare(log)
    result = ENGINE.run(plan, log)
    confirm(log, plan, result)
    for file in store.list("ns/c/snapshot"):
        aged(store, file.path, ORPHAN_MS / 1000 + 60)
    prune(real_log(store))
    with pytest.raises(LostRace):
        publish(log, plan, result)
    assert real_log(store).manifest().snapshots == {}


def test_the_owner_removes_former_snapshots_by_itself(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(4):
        append(log, put("a", number, (1, 1, 1, number + 1)))
        run(memory)
    assert len(memory.list("ns/c/snapshot")) == 4
    remove_covered(cluster(memory), "n1", Settings(), log.unsealed)
    assert len(memory.list("ns/c/snapshot")) == 4, "not unless a setting asks for it"
    remove_covered(cluster(memory), "n1", Settings(wal_size_limit_mb=1), log.unsealed)
    assert [file.path for file in memory.list("ns/c/snapshot")] == list(snapshot(memory).paths)
    assert values(view(memory)) == {"a": "3"}


def test_unnamed_file_of_the_current_generation_is_removed(memory: MemoryStore) -> None:
    """A file of the current generation that no manifest names is removed. A second attempt of a
    Spark task leaves such a file."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    run(memory)
    (path,) = snapshot(memory).paths
    left = path.replace("part-00000-00000-", "part-00000-00000-f")
    memory.create(left, memory.read(path))
    assert prune(cluster(memory)).snapshot_files == (left,)
    assert values(view(memory)) == {"a": "1"}
