"""Each moment of the last `history_s` seconds can be read again, whatever was rewritten and removed
since."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.clock import SKEW_MS_MAX
from imap_wal.context import Context
from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    MAP,
    ORDER,
    PARTITION,
    TIMESTAMP_MS,
    VALUE,
    Row,
    is_clear,
)
from imap_wal.manifest import readers
from imap_wal.manifest.reader_manifest import Base, ReaderManifest
from imap_wal.manifest.readers import HISTORY, Reader
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.view import live
from imap_wal.retention import history
from imap_wal.retention.history import at_time, keep_history
from imap_wal.retention.kept import kept_for_readers
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import RecoveryMode, RecoveryPolicy
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore, forget
from tests import histories
from tests.histories import KEYS, MAPS, Cluster, partition_of, put, steps
from tests.kit.disk_writer import Writer
from tests.kit.examples import OF_HISTORIES
from tests.kit.logs import SMALL, append, node
from tests.support import FakeClock, overwrite

_numbers = itertools.count()
Places = dict[tuple[str, bytes], Row]
HOUR_MS = 3_600_000
BASES_MAX = history.SHARES + 2


def read_at(log: ClusterLog, time_ms: int) -> tuple[Places, frozenset[str]]:
    """The live entries at a time, and the maps of which that is not known."""
    past = at_time(log, log.state().demand(RecoveryPolicy.FULL), time_ms)
    with closing(NewestIndex(1 << 24)) as index:
        for changes in log.changes(state=past.state):
            rows = [row for row in changes.rows if row[TIMESTAMP_MS] <= time_ms]
            index.add(changes.node, rows, clears=changes.clears)
        found = {
            (name, row[KEY]): row
            for name in index.maps()
            if name not in past.unknown
            for batch in index.batches(name)
            for row in live(batch, time_ms)
        }
    return found, past.unknown


@dataclass
class Remembering(Cluster):
    """A history of which every moment is remembered."""

    def __post_init__(self) -> None:
        self.changes: list[tuple[Row, bool]] = []
        """Each change that counts, and whether its partition had a new owner by then: it was not
        acknowledged, and may be void or not."""
        self.drops: dict[str, tuple[int, int]] = {}
        """Map → the time of its last drop, and how many changes came before."""
        self.unkept: dict[str, int] = {}
        """Map → the time until which it may be unknown, because it was dropped."""
        super().__post_init__()

    def append(self, node: str, *rows: Row) -> None:
        super().append(node, *rows)
        for row in rows:
            if row[ORDER][0] == self.incarnation:
                self.changes.append((row, row[ORDER][1] < self.version[row[PARTITION]]))

    def step(self, kind: str, node: str, name: str, key: bytes) -> None:
        super().step(kind, node, name, key)
        if kind == "drop":
            self.drops[name] = self.clock.now_ms(), len(self.changes)
            self.unkept[name] = 2**62

    def keep(self, history_s: int) -> None:
        assert keep_history(self.log, history_s) == ""
        now_ms = self.clock.now_ms()
        self.unkept = {name: min(known_ms, now_ms) for name, known_ms in self.unkept.items()}

    def at(self, name: str, key: bytes, time_ms: int) -> list[Row | None]:
        """The possible entries of a key at a time; None: there is none."""
        begin = self.drops.get(name, (0, 0))[1]
        mine = [
            (row, late)
            for row, late in self.changes[begin:]
            if row[MAP] == name
            and row[TIMESTAMP_MS] <= time_ms
            and (row[PARTITION] == partition_of(key) if is_clear(row) else row[KEY] == key)
        ]
        certain = (row for row, late in mine if not late)
        newest = max(certain, key=lambda row: row[ORDER], default=None)
        order = newest[ORDER] if newest is not None else (-1, -1, -1, -1)
        rows = [newest, *(row for row, late in mine if late and row[ORDER] > order)]
        return [
            None if row is None or row[DELETED] or 0 < row[EXPIRES_AT_MS] <= time_ms else row
            for row in rows
        ]

    def demand(self, time_ms: int, known_from_ms: int) -> None:
        """Read a moment, and compare it."""
        found, unknown = read_at(self.log, time_ms)
        dropped = {name for name, (at_ms, _) in self.drops.items() if at_ms > time_ms}
        if time_ms >= known_from_ms:
            may_be = {name for name, known_ms in self.unkept.items() if known_ms > time_ms}
            assert unknown <= may_be, f"{unknown} at {time_ms}"
        for name in set(MAPS) - unknown - dropped:
            for key in KEYS:
                assert found.get((name, key)) in self.at(name, key, time_ms), (name, key, time_ms)


@pytest.mark.timeout(900)
@OF_HISTORIES
@given(
    history=steps,
    every=st.integers(3, 20),
    hours=st.sampled_from((1, 2, 4)),
    keeps=st.lists(st.booleans(), min_size=3, max_size=3),
    part=st.integers(0, 14),
)
def test_each_moment_of_the_history_equals_a_dict(
    monkeypatch: pytest.MonkeyPatch,
    history: list[tuple[str, int, int, int]],
    every: int,
    hours: int,
    keeps: list[bool],
    part: int,
) -> None:
    """Also if some rewrites and prunes come from programs that do not have the setting. `part`:
    which minute of 20 is read, at least five after the changes."""
    monkeypatch.setitem(histories.SKEW_MS, "n2", SKEW_MS_MAX - 60_000)
    name = f"travel-{next(_numbers)}"
    played = Remembering(MemoryStore(name))
    history_s, upkeep = hours * 3600, itertools.cycle(keeps)
    moments: list[int] = []

    def check() -> None:
        now_ms = played.clock.now_ms()
        for begin_ms in [*moments[-9:], now_ms]:
            time_ms = begin_ms + SKEW_MS_MAX + part * 60_000
            played.demand(time_ms, now_ms - history_s * 1000)

    try:
        played.keep(history_s)
        for number, step in enumerate(history):
            if step[0] == "wait":
                moments.append(played.clock.now_ms())
            if step[0] in ("rewrite", "rewrite_one", "prune") and next(upkeep):
                played.keep(history_s)
            played.play([step])
            if number % every == 0:
                check()
        check()
        for _ in range(3 * hours):
            moments.append(played.clock.now_ms())
            played.play([("wait", 0, 0, 0), ("put", 0, 0, 0), ("rotate", 0, 0, 0)])
            played.keep(history_s)
            played.play([("rewrite", 0, 0, 0), ("prune", 0, 0, 0)])
            check()
        kept = readers.bases_of_history(played.store, played.log.folder)
        drops = sum(kind == "drop" for kind, *_ in history)
        assert len(kept) <= BASES_MAX + drops
        played.check()
    finally:
        played.close()
        forget(name)


class Log:
    """A log of one map, which is compacted every hour, and what it had."""

    def __init__(self, store: SegmentStore, history_s: int = 4 * 3600) -> None:
        self.store, self.clock, self.history_s = store, FakeClock(), history_s
        self.log = ClusterLog(Context(store, clock=self.clock), "ns", "c")
        self.nodes = {name: node(store, name) for name in ("n1", "n2")}
        self.requests = itertools.count(1)
        self.had: dict[int, dict[str, str]] = {}

    def put(self, key: str, value: str | None, name: str = "orders", at: str = "n1") -> NodeLog:
        log = self.nodes[at]
        order = (1, 1, 2 if at == "n1" else 1, next(self.requests))
        append(log, put(key, value, order, name, self.clock.now_ms()))
        return log

    def hour(self, count: int = 1) -> None:
        """A change, a compaction, and an hour."""
        for _ in range(count):
            self.put("a", str(len(self.had))).rotate()
            keep_history(self.log, self.history_s, 2**60)
            rewrite(self.log, LocalEngine(SMALL), skew_ms_max=2**60)
            prune(self.log)
            self.had[self.clock.now_ms() + HOUR_MS // 2] = {"a": str(len(self.had))}
            self.clock.advance(3600)

    def known(self) -> list[int]:
        """For each hour, from the first: whether its state can be read. It is then right."""
        found = []
        for moment, had in self.had.items():
            live_then, unknown = read_at(self.log, moment)
            if not unknown:
                values = {key.decode(): row[VALUE] for (_, key), row in live_then.items()}
                assert values == {key: value.encode() for key, value in had.items()}
            found.append(int(not unknown))
        return found

    @property
    def bases(self) -> tuple[Base, ...]:
        return readers.bases_of_history(self.store, self.log.folder)


def test_without_a_history_a_rewrite_forgets(memory: MemoryStore) -> None:
    log = Log(memory, history_s=0)
    log.hour(3)
    assert log.known() == [0, 0, 1]
    assert memory.list("ns/c/readers") == []


def test_a_history_is_kept_for_its_time(memory: MemoryStore) -> None:
    """And little longer: a prune removes the log, and the snapshots, of what is older."""
    log = Log(memory)
    log.hour(12)
    assert log.known() == [0] * 6 + [1] * 6
    assert len(log.bases) <= BASES_MAX
    left = {path for base in log.bases for each in base.snapshots.values() for path in each.paths}
    now = log.log.manifest().snapshots["orders"].paths
    assert {file.path for file in memory.list("ns/c/snapshot")} == left | set(now)
    assert len(log.log.node("n1").segments) <= 7


def test_a_history_that_is_not_advanced_stays(memory: MemoryStore) -> None:
    """Other programs compact without the setting."""
    log = Log(memory)
    log.hour()
    log.history_s = 0
    log.hour(9)
    assert log.known() == [1] * 10
    (kept,) = kept_for_readers(log.log)
    assert (kept.reader, kept.begins_ms, kept.is_stale) == (HISTORY, 0, False)
    assert kept.log_bytes > 0
    log.clock.advance(8 * 24 * 3600)
    (kept,) = kept_for_readers(log.log)
    assert kept.is_stale
    assert "prune --forget-reader history" in kept.advice
    assert readers.forget(log.log.context, log.log.folder, HISTORY)
    prune(log.log)
    assert log.known() == [0] * 9 + [1]
    log.history_s = 3600
    log.hour(2)
    assert log.known()[-2:] == [1, 1]


def test_entries_of_a_clock_that_is_ahead_are_not_missed(memory: MemoryStore) -> None:
    """A snapshot has only the later change of a key, and was made before the wanted moment."""
    log = Log(memory)
    log.hour()
    log.put("a", "before")
    moment = log.clock.now_ms() + 1500
    log.nodes["n1"].rotate()
    order = (1, 1, 2, next(log.requests))
    append(log.nodes["n1"], put("a", "ahead", order, timestamp_ms=moment + 1))
    keep_history(log.log, log.history_s, 2**60)
    rewrite(log.log, LocalEngine(SMALL), skew_ms_max=2**60)
    prune(log.log)
    (row,) = read_at(log.log, moment)[0].values()
    assert row[VALUE] == b"before"


def test_a_dropped_map_does_not_hide_the_others(memory: MemoryStore) -> None:
    log = Log(memory, history_s=24 * 3600)
    log.put("x", "1", "other")
    log.hour(2)
    drop_map(log.log, "other")
    log.hour(2)
    for moment in list(log.had)[:2]:
        found, unknown = read_at(log.log, moment)
        assert unknown == {"other"}
        assert [row[VALUE] for row in found.values()] == [log.had[moment]["a"].encode()]
    assert [read_at(log.log, moment)[1] for moment in list(log.had)[2:]] == [frozenset()] * 2
    assert len(log.bases) > 1, "the others are still of use"


def test_before_a_node_was_forgotten_nothing_is_known(memory: MemoryStore) -> None:
    """Its log is gone: what came after the former snapshot is not in the present log."""
    log = Log(memory)
    log.put("a", "n2", at="n2")
    log.hour(2)
    log.nodes["n2"].close(clean=True)
    forget_node(log.log, "n2", lose=True)
    assert log.known() == [0, 1]
    log.hour(3)
    assert log.known() == [0, 1, 1, 1, 1]


def test_before_a_part_was_lost_nothing_is_known(memory: MemoryStore) -> None:
    """The present snapshot has what the log lost."""
    log = Log(memory)
    log.hour()
    log.put("a", "damaged")
    log.put("a", "last")
    log.had[log.clock.now_ms() + HOUR_MS // 2] = {"a": "last"}
    rewrite(log.log, LocalEngine(SMALL), skew_ms_max=2**60)
    assert log.known() == [1, 1]
    log.nodes["n1"].close(clean=False)
    path = log.log.node("n1").segments[-1].path
    overwrite(memory, path, memory.read(path).replace(b"damaged", b"changed"))
    point_in_time = replace(SMALL, recovery_mode=RecoveryMode.POINT_IN_TIME)
    log.nodes["n1"] = node(memory, settings=point_in_time)
    assert log.known() == [0, 1]


@pytest.mark.parametrize("is_in_a_snapshot", [False, True])
def test_an_interrupted_commit_is_no_loss(memory: MemoryStore, is_in_a_snapshot: bool) -> None:
    """Unless a snapshot has it: then it was a whole one, and the log lost it."""
    log = Log(memory)
    log.hour(2)
    log.put("a", "torn")
    if is_in_a_snapshot:
        rewrite(log.log, LocalEngine(SMALL), skew_ms_max=2**60)
    log.nodes["n1"].close(clean=False)
    path = log.log.node("n1").segments[-1].path
    data = memory.read(path)
    overwrite(memory, path, data[: data.rindex(b"torn")])
    log.nodes["n1"] = node(memory)
    assert log.nodes["n1"].recovery.torn_bytes > 0
    log.hour()
    known = int(not is_in_a_snapshot)
    assert log.known() == [known, known, 1]


def test_a_base_that_lost_a_file_is_not_used(memory: MemoryStore) -> None:
    log = Log(memory)
    log.hour(4)
    assert log.known() == [1] * 4
    for path, _ in ReaderManifest(base=log.bases[1]).kept_files(log.log.manifest()):
        memory.delete(path)
    assert log.known() == [1] * 4, "an older base has the same moments"
    log.hour()
    assert log.known() == [1] * 5


def test_a_base_whose_snapshots_were_replaced_is_withdrawn(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rewrite was published before it was registered; a prune may not have seen it."""
    log, published = Log(memory), []
    log.hour(2)
    keep = Reader.keep

    def racing(reader: Reader, *arguments: Any) -> tuple[Base, ...]:
        done = keep(reader, *arguments)
        published.append(len(done))
        if len(published) == 1:
            log.put("a", "2").rotate()
            rewrite(log.log, LocalEngine(SMALL), skew_ms_max=2**60)
            prune(log.log)
        return done

    before = len(log.bases)
    with monkeypatch.context() as context:
        context.setattr(Reader, "keep", racing)
        keep_history(log.log, log.history_s, 2**60)
    assert published[:3] == [before + 1, before, before + 1]
    assert log.bases[-1].snapshots == log.log.manifest().snapshots
    assert log.known() == [1, 1]


def test_a_base_knows_the_log_of_a_disk_away(memory: MemoryStore) -> None:
    """Otherwise the log above it would seem to be removed when the disk is back."""
    writer = Writer(memory, MemoryStore("the-disk"), 1)
    away, whole = (
        ClusterLog(Context(each, clock=writer.clock), "ns", "c") for each in (memory, writer.store)
    )

    def compact() -> None:
        writer.log.rotate()
        rewrite(whole, LocalEngine(SMALL), skew_ms_max=2**60)
        prune(whole, unsealed={"n1": writer.log.unsealed})

    try:
        writer.put("k", "old", 1)
        compact()
        writer.put("k", "then", 2)
        assert away.state().parts
        keep_history(away, 3600, 2**60)
        writer.clock.advance(600)
        moment = writer.clock.now_ms()
        writer.clock.advance(600)
        compact()
        found, unknown = read_at(whole, moment)
        assert ([row[VALUE] for row in found.values()], unknown) == ([b"then"], frozenset())
    finally:
        writer.log.close(clean=True)
        forget("the-disk")


def test_a_history_that_is_forgotten_meanwhile_keeps_nothing(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a base, it would keep the whole log."""
    log = Log(memory)
    log.hour(3)
    keep = Reader.keep

    def racing(reader: Reader, *arguments: Any) -> tuple[Base, ...]:
        readers.forget(log.log.context, log.log.folder, HISTORY)
        return keep(reader, *arguments)

    log.put("a", "4").rotate()
    rewrite(log.log, LocalEngine(SMALL), skew_ms_max=2**60)
    with monkeypatch.context() as context:
        context.setattr(Reader, "keep", racing)
        keep_history(log.log, 100 * log.history_s, 2**60)
    assert log.bases == ()
    prune(log.log)
    assert len(log.log.node("n1").segments) == 1


def test_a_clock_that_was_ahead_does_not_keep_the_log(memory: MemoryStore) -> None:
    """A base of that moment would be the newest for years, and the log above it would be kept."""
    log, years_s = Log(memory), 10 * 365 * 24 * 3600
    log.hour()
    log.clock.advance(years_s)
    log.hour()
    log.clock.advance(-years_s)
    moments = len(log.had)
    log.hour(12)
    assert len(log.bases) <= BASES_MAX
    assert len(log.log.node("n1").segments) <= 8
    unknown = [read_at(log.log, moment)[1] for moment in list(log.had)[moments:]]
    assert [bool(each) for each in unknown] == [True] * 6 + [False] * 6
