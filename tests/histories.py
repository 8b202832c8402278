"""Random histories of a small cluster: two nodes with clocks ten minutes apart, two maps,
partitions that move, changes in flight that arrive late, crashes, new cluster lifetimes, and
everything that is done to logs. Also a reference: a dict that has the newest change of each
key, and does not use a log."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis.strategies as st

from imap_wal import format
from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.clock import SKEW_MS_MAX, SeededRandomness
from imap_wal.context import Context
from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    MAP,
    ORDER,
    PARTITION,
    VALUE,
    Order,
    Row,
    clear_of,
    is_clear,
    pack,
)
from imap_wal.layout import Identity
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore, forget
from tests.support import FakeClock

NODES = ("n1", "n2")
MAPS = ("orders", "../a b")
PARTITIONS = 2
KEYS = tuple(bytes((0, 0, 0, 2 + number)) + b"data k%d" % number for number in range(3))
"""Each key begins with its partition hash, as Hazelcast writes it."""
SKEW_MS = {"n1": 0, "n2": 600_000}
STEP_S = 1200

KINDS = (
    "nothing",
    *("put",) * 6,
    *("delete",) * 3,
    "ttl",
    *("hold",) * 4,
    "clear",
    "clear",
    "hold_clear",
    *("arrive",) * 3,
    *("move",) * 4,
    "rotate",
    "rotate",
    "archive",
    "rewrite",
    "rewrite",
    "rewrite_one",
    "prune",
    "prune",
    "crash",
    "restart",
    "close_all",
    "lifetime",
    "wait",
    "drop",
    "catch_up",
    "catch_up",
)

steps = st.lists(
    # A list is about twice as long as it must be; shrunk ones are padded with "nothing".
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 1),
        st.sampled_from((0, 0, 1)),
        st.integers(0, len(KEYS) - 1),
    ),
    min_size=40,
    max_size=120,
)
"""(what, node, map, key) of each step."""


def partition_of(key: bytes) -> int:
    return key[3] % PARTITIONS


@dataclass
class Held:
    """A change that was numbered, and is not yet in the log. However long that takes."""

    row: Row


@dataclass
class Cluster:
    """The history so far."""

    store: SegmentStore
    clock: FakeClock = field(default_factory=FakeClock)
    settings: Settings = field(
        default_factory=lambda: Settings(preallocate=False, segment_bytes=1 << 20)
    )
    skew_ms_max: int = SKEW_MS_MAX
    """It is higher where the storage's clock runs and ours does not."""

    def __post_init__(self) -> None:
        self.randomness = SeededRandomness(7)
        self.log = ClusterLog(
            Context(self.store, clock=self.clock, randomness=self.randomness), "ns", "c.1"
        )
        self.logs: dict[str, NodeLog] = {}
        self.sessions: dict[str, int] = {}
        self.requests = itertools.count(1)
        self.values = itertools.count(1)
        self.owner = [0] * PARTITIONS
        self.version = [1] * PARTITIONS
        self.held: dict[str, list[Held]] = {node: [] for node in NODES}
        self.reference: dict[tuple[str, bytes], Row] = {}
        self.incarnation = 0
        for node in NODES:
            self.open(node)
        self.lifetime()
        self.view = MaterializedView(self.log, self.settings)

    # ---- the cluster ----

    def open(self, node: str) -> NodeLog:
        log = open_node_log(
            LogContext(
                Context(self.store, clock=self.clock, randomness=self.randomness),
                Identity("ns", "c.1", node),
                self.settings,
            ),
            holder="the history",
        )
        self.logs[node] = log
        self.sessions[node] = log.new_session()
        return log

    def running(self, node: str) -> NodeLog:
        return self.logs.get(node) or self.open(node)

    def stop(self, node: str, clean: bool) -> None:
        """What it had not appended dies with it."""
        log = self.logs.pop(node, None)
        self.held[node] = []
        if log is not None:
            log.close(clean=clean)

    def lifetime(self) -> None:
        """All members are restarted: partition versions begin at 1 again, and what is still in
        flight is void."""
        incarnation = self.incarnation = self.log.manifests.update(
            lambda manifest: replace(manifest, incarnation=manifest.incarnation + 1)
        ).incarnation
        cuts = find_cutoffs(self.log).cuts
        self.log.manifests.update(
            lambda manifest: replace(
                manifest,
                lifetimes=(
                    *manifest.lifetimes,
                    IncarnationRecord(f"id-{incarnation}", incarnation, cuts),
                ),
            )
        )
        self.version = [1] * PARTITIONS

    def change(
        self, key: bytes, name: str, value: bytes | None, ttl_ms: int = 0
    ) -> tuple[str, Row]:
        node, now, order = self.stamp(partition_of(key))
        expires = self.clock.now_ms() + ttl_ms if ttl_ms else 0
        return node, (
            name,
            key,
            "K",
            value,
            "V",
            value is None,
            now,
            expires,
            partition_of(key),
            order,
        )

    def clearing(self, partition: int, name: str) -> tuple[str, Row]:
        node, now, order = self.stamp(partition)
        return node, clear_of(name, partition, PARTITIONS, now, order)

    def stamp(self, partition: int) -> tuple[str, int, Order]:
        """The owner, its time, and the order of its next change."""
        node = self.owner_of(partition)
        self.running(node)
        order = (
            self.incarnation,
            self.version[partition],
            self.sessions[node],
            next(self.requests),
        )
        return node, self.clock.now_ms() + SKEW_MS[node], order

    def append(self, node: str, *rows: Row) -> None:
        log = self.running(node)
        log.write(
            format.CLEARS if any(map(is_clear, rows)) else format.ENTRIES,
            len(rows),
            [pack(row) for row in rows],
        )
        log.sync()
        for row in rows:
            session, request = row[ORDER][2:]
            log.requests[session] = max(request, log.requests.get(session, 0))
            for key in (
                [key for key in KEYS if partition_of(key) == row[PARTITION]]
                if is_clear(row)
                else [row[KEY]]
            ):
                known = self.reference.get((row[MAP], key))
                if row[ORDER][0] == self.incarnation and (
                    known is None or known[ORDER] < row[ORDER]
                ):
                    self.reference[row[MAP], key] = row

    def owner_of(self, partition: int) -> str:
        return NODES[self.owner[partition]]

    def arrive(self, node: str) -> None:
        """What a node has numbered is in its log before it numbers another change that is not held:
        a node appends in the order of its requests."""
        held, self.held[node] = self.held[node], []
        if held and node in self.logs:
            self.append(node, *(each.row for each in held))
            for each in held:
                self.repeat(each.row)

    def repeat(self, row: Row) -> None:
        """A change whose partition has a new owner by the time it is in the log is not
        acknowledged: Hazelcast repeats it there."""
        incarnation, version = row[ORDER][:2]
        if incarnation == self.incarnation and version < self.version[row[PARTITION]]:
            self.arrive(self.owner_of(row[PARTITION]))
            if is_clear(row):
                self.append(*self.clearing(row[PARTITION], row[MAP]))
                return
            node, again = self.change(row[KEY], row[MAP], row[VALUE])
            self.append(node, (*again[:7], row[EXPIRES_AT_MS], *again[8:]))

    # ---- steps ----

    def play(self, history: Sequence[tuple[str, int, int, int]]) -> None:
        for kind, node, name, key in history:
            self.step(kind, NODES[node], MAPS[name], KEYS[key])

    def step(self, kind: str, node: str, name: str, key: bytes) -> None:
        match kind:
            case "nothing":
                pass
            case "put" | "delete" | "ttl" | "hold":
                if kind != "hold":
                    self.arrive(self.owner_of(partition_of(key)))
                value = None if kind == "delete" else b"v%d" % next(self.values)
                writer, row = self.change(
                    key, name, value, 2 * STEP_S * 1000 if kind == "ttl" else 0
                )
                self.send(writer, row, held=kind == "hold")
            case "clear" | "hold_clear":
                if kind == "clear":
                    self.arrive(self.owner_of(partition_of(key)))
                self.send(*self.clearing(partition_of(key), name), held=kind == "hold_clear")
            case "arrive":
                self.arrive(node)
            case "move":
                self.owner[partition_of(key)] = 1 - self.owner[partition_of(key)]
                self.version[partition_of(key)] += 1
            case "rotate":
                self.running(node).rotate()
            case "archive":
                self.archive(node)
            case "rewrite":
                rewrite(self.log, LocalEngine(self.settings), skew_ms_max=self.skew_ms_max)
            case "rewrite_one":
                rewrite(
                    self.log, LocalEngine(self.settings), maps=[name], skew_ms_max=self.skew_ms_max
                )
            case "prune":
                prune(self.log)
            case "crash" | "restart":
                self.stop(node, clean=kind == "restart")
                self.open(node)
            case "close_all":
                for each in NODES:
                    self.stop(each, clean=True)
            case "lifetime":
                self.lifetime()
            case "wait":
                self.clock.advance(STEP_S)
            case "drop":
                drop_map(self.log, name)
                self.reference = {
                    place: row for place, row in self.reference.items() if place[0] != name
                }
                self.held = {
                    each: [held for held in rows if held.row[MAP] != name]
                    for each, rows in self.held.items()
                }
            case "catch_up":
                self.view.catch_up()
                assert live_of(self.view) == self.expected(), "the view that follows the log"

    def send(self, node: str, row: Row, *, held: bool) -> None:
        if held:
            self.held[node].append(Held(row))
        else:
            self.append(node, row)

    def archive(self, node: str) -> None:
        log = self.running(node)
        log.rotate()
        archive_sealed(
            Context(self.store), log.identity.node_folder, node, log.manifests, writing=log.unsealed
        )

    # ---- what must be true ----

    def expected(self) -> dict[tuple[str, bytes], Row]:
        now = self.clock.now_ms()
        return {
            place: row
            for place, row in self.reference.items()
            if not row[DELETED] and not 0 < row[EXPIRES_AT_MS] <= now
        }

    def check(self) -> None:
        """A new restore, and the view that existed from the beginning, both have what the reference
        has."""
        fresh = MaterializedView(self.log, self.settings)
        fresh.catch_up()
        assert live_of(fresh) == self.expected(), "a fresh restore"
        fresh.close()
        self.step("catch_up", "", "", b"")

    def close(self) -> None:
        self.view.close()
        for log in self.logs.values():
            log.close(clean=False)


def play_and_maintain(
    name: str, history: Sequence[tuple[str, int, int, int]], settings: Settings
) -> None:
    """A history in a store of this name, then every maintenance. The map is checked after it and
    after each step."""
    found = Cluster(MemoryStore(name), settings=settings)
    try:
        found.play(history)
        found.check()
        for kind in ("archive", "rewrite", "put", "prune", "rewrite", "crash"):
            found.step(kind, "n1", "orders", KEYS[0])
            found.check()
    finally:
        found.close()
        forget(name)


def live_of(view: MaterializedView) -> dict[tuple[str, bytes], Row]:
    found = {
        (name, row[KEY]): row for name in view.maps() for rows in view.rows(name) for row in rows
    }
    for name in {name for name, _ in found}:
        keys = [key for of, key in found if of == name]
        assert sorted(key for batch in view.keys(name, 4) for key in batch) == sorted(keys)
        assert {row[KEY]: row for row in view.load(name, [*keys, b"absent"])} == {
            key: found[name, key] for key in keys
        }
    return found


def put(
    key: str,
    value: Any,
    order: tuple[int, int, int, int],
    name: str = "orders",
    timestamp_ms: int = 1000,
    expires_at_ms: int = 0,
) -> Row:
    """A row, for tests that lay a log out by hand. `value` None: a tombstone."""
    data = None if value is None else str(value).encode()
    return (name, key.encode(), "K", data, "V", data is None, timestamp_ms, expires_at_ms, 0, order)
