"""Which agents run, and whether the cluster that has the log is alive: small files that change.

    SignOfLife   a file of each agent, renewed under the next number: in `claims/alive/` while the
                 agent hears members of the newest incarnation, otherwise in `claims/present/`,
                 with the id of its member's cluster; both have the time (`clocks.py`)
    SignWatch    the files of other agents, as one agent sees them: a new lifetime is claimed only
                 when no cluster is alive, and when the nodes to wait for (`start.py`) are present

The watching agent checks only whether the files change, by its own monotonic clock. This affects
when a claim is made, never which entries count: a claim is safe at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from imap_wal import layout
from imap_wal.agent.membership import clocks
from imap_wal.clock import Clock
from imap_wal.worker import Worker
from storage_backends import NotFound, SegmentStore, StorageError

RENEWALS = 3
"""How many times a sign is renewed within the time after which it no longer counts."""
FIRST_PAUSE_S = 0.1
"""An agent that starts renews its sign sooner, so that agents that start together see each other
soon. The pause doubles each time."""
LEFT_S = 1.0
"""A member whose connections have all ended, and that has not connected again after this time, was
killed. A live one tries again after at most a tenth of it, and then more and more slowly."""


class SignOfLife:
    """This agent's sign, renewed by its own thread. While the agent hears no member, the thread
    also updates `watch`, so that a new cluster need not wait for the whole timeout. `heard`,
    `greeted`, `silent`, `left` and `followed` do not wait for the storage."""

    def __init__(
        self,
        store: SegmentStore,
        cluster: str,
        node: str,
        epoch: int,
        timeout_s: float,
        watch: SignWatch,
        clock: Clock,
        *,
        claimed_by: Callable[[], str],
        due: Callable[[], object],
    ) -> None:
        """`claimed_by` reads the cluster of the newest claim from the storage. It is called if the
        incarnation of a heard member has no permit any more. `due` is called whenever a sign is
        due, after it was renewed."""
        self._claimed_by, self._when_due = claimed_by, due
        self.followed: tuple[int, str] | None = None
        """The incarnation of the members that were heard last, and the cluster of the newest claim;
        None: this incarnation still had its permit. Replaced as a whole."""
        self._store, self._cluster, self._node, self._watch, self._clock = (
            store,
            cluster,
            node,
            watch,
            clock,
        )
        self._timeout_s, self._every_s, self._pause_s = (
            timeout_s,
            timeout_s / RENEWALS,
            FIRST_PAUSE_S,
        )
        self._alive = _File(
            store, clock, lambda number: layout.alive_path(cluster, node, epoch, number)
        )
        self._present = _File(
            store, clock, lambda number: layout.present_path(cluster, node, epoch, number)
        )
        self._due = clock.monotonic()
        self._unheard = 0
        self._heard = 0
        """The incarnation of a member that was heard since the last renewal; 0: none."""
        self._silent = False
        self._left: tuple[str, float] | None = None
        """The cluster of the last member whose connections ended without a bye, and when; None: one
        is connected."""
        self._greeted, self._greeted_at = "", 0.0
        """The id of the member's cluster, and when the member was last heard."""
        self.worker = Worker("imap-wal-alive", self._turn)

    def start(self) -> None:
        """Delete the signs of earlier runs of this node's agent, and start the thread."""
        with suppress(StorageError):
            remove_signs(self._store, self._cluster, self._node)
        self.worker.start()

    def greeted(self, cluster_id: str) -> None:
        """A member of this cluster has sent a message, possibly a hello that was refused."""
        former, self._greeted, self._greeted_at = (
            self._greeted,
            cluster_id,
            self._clock.monotonic(),
        )
        if former != cluster_id:
            self._watch.wake.set()  # other nodes of this cluster may wait for this one
        if (left := self._left) is not None and left[0] == cluster_id:
            self._left = None

    def heard(self, incarnation: int) -> None:
        """A member of this incarnation, the newest known one, has sent a message."""
        self._heard, self._left = incarnation, None
        if not self._alive.path:
            self._watch.wake.set()  # the first sign is created at once

    def silent(self) -> None:
        """The last member has said bye: delete the sign now. If a member is heard later, there is a
        new sign."""
        self._heard, self._silent, self._greeted = 0, True, ""
        self._watch.wake.set()

    def left(self, cluster_id: str) -> None:
        """The last connection of a member of this cluster has ended without a bye: delete the sign
        after `LEFT_S`, unless one of them connects again."""
        self._heard, self._left = 0, (cluster_id, self._clock.monotonic())
        self._watch.wake.set()

    def stop(self, timeout_s: float, clean: bool) -> None:
        """End the thread, and after a clean stop delete the signs. Waits at most `timeout_s` for
        the storage."""
        self.worker.stopping.set()
        self._watch.wake.set()
        if self.worker.stop(timeout_s) and clean:
            with suppress(StorageError):
                self._alive.remove()
                self._present.remove()

    def _turn(self, worker: Worker) -> bool:
        self._watch.wake.wait(max(0.0, self._next_at() - self._clock.monotonic()))
        self._watch.wake.clear()
        if worker.stopping.is_set():
            return False
        look, now = self._watch.begin(), self._clock.monotonic()
        due, silent = now >= self._due, self._silent and not self._heard
        self._silent = False
        if (left := self._left) is not None and now - left[1] >= LEFT_S:
            self._left, silent = None, True
            if self._greeted == left[0]:  # not if a member of another cluster waits here meanwhile
                self._greeted = ""
        heard = self._renew_alive(due)
        self._unheard = 0 if heard else self._unheard + due
        if due or heard:
            self._pause_s = (
                self._every_s if self._alive.path else min(self._every_s, 2 * self._pause_s)
            )
            self._due = now + self._pause_s
        if due and now - self._greeted_at >= self._timeout_s:
            self._greeted = ""
        # Members that are no longer heard and sent no bye were killed: the next cluster need not
        # wait for them either.
        over = not heard and (not self._alive.path or silent or self._unheard >= RENEWALS)
        greeted = self._greeted
        if not heard and (
            due or (over and (not self._present.path or self._present.cluster_id != greeted))
        ):
            self._present.renew(greeted)
        if over:
            self._alive.remove()
        # After creating its own sign: of two clusters that start at the same time, one sees the
        # other.
        if look.asked or over or (due and not heard):
            self._watch.look(look)
        if due:
            self._when_due()
        return True

    def _next_at(self) -> float:
        left = self._left
        return self._due if left is None else min(self._due, left[1] + LEFT_S)

    def _renew_alive(self, due: bool) -> bool:
        """Renew the sign if a member of the newest incarnation was heard. Returns whether it
        was."""
        if not self._heard or not (due or not self._alive.path):
            return False
        heard, self._heard = self._heard, 0
        # Another cluster may have claimed the log meanwhile, and this member may not know it yet.
        if not self._store.exists(layout.claim_path(self._cluster, heard)):
            if due or self.followed is None or self.followed[0] != heard:  # not at each message
                self.followed = heard, self._claimed_by()
            return False
        self.followed = None
        self._alive.renew()
        self._present.remove()
        return True


class _File:
    """A sign of this agent. `path`: "" while there is none."""

    def __init__(self, store: SegmentStore, clock: Clock, path_of: Callable[[int], str]) -> None:
        self._store, self._clock, self._path_of, self._number = store, clock, path_of, 0
        self.path, self.cluster_id = "", ""

    def renew(self, cluster_id: str = "") -> None:
        self._number += 1
        following = self._path_of(self._number)
        self._store.create(following, clocks.content(cluster_id, self._clock.now_ms()))
        former, self.path, self.cluster_id = self.path, following, cluster_id
        if former:
            self._store.delete(former)

    def remove(self) -> None:
        path, self.path = self.path, ""
        if path:
            self._store.delete(path)


def signs(store: SegmentStore, cluster: str) -> list[str]:
    """The current signs of life of the cluster that has the log."""
    return _files(store, layout.alive_folder(cluster))


def present(store: SegmentStore, cluster: str) -> dict[str, str]:
    """Nodes whose agents run, or ran until they were killed, and hear no member of the cluster that
    has the log → the id of their member's cluster ("": none was heard)."""
    clusters: dict[str, str] = {}
    for path in _files(store, layout.present_folder(cluster)):
        with suppress(NotFound):
            clusters[str(layout.parse_sign_path(path))] = _cluster_id(store.read(path))
    return clusters


def remove_signs(store: SegmentStore, cluster: str, node: str) -> None:
    """Delete all signs of a node."""
    for path in (*signs(store, cluster), *_files(store, layout.present_folder(cluster))):
        if layout.parse_sign_path(path) == node:
            store.delete(path)


def _files(store: SegmentStore, folder: str) -> list[str]:
    return sorted(
        file.path for file in store.list(folder) if layout.parse_sign_path(file.path) is not None
    )


def _cluster_id(sign: bytes) -> str:
    return clocks.parse(sign)[0]


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the files of other agents. `asked`: a hello waits for it."""

    number: int
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Presence:
    """What is known about a node. `absent`: why it does not count as present; "" if its agent runs.
    `cluster_id`: of its member; "": none was heard."""

    absent: str = ""
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """The result of look `number`, which began at `at` (monotonic seconds). `alive`: the nodes
    whose agents hear the cluster that has the log, as text; "" if there are none. `nodes`: the
    nodes that a new cluster may have to wait for."""

    number: int = 0
    at: float = 0.0
    alive: str = ""
    nodes: Mapping[str, Presence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest file of a node, and when it was first seen. `fresh`: it appeared after an earlier
    look, so a running agent created it."""

    path: str
    since: float
    fresh: bool


class SignWatch:
    """Watches the files of other agents. `look` reads them, on one thread; other threads use
    `sight`. `timeout_s` 0: no cluster counts as alive, and nothing is read. `belonging` reads the
    names of the nodes to wait for."""

    def __init__(
        self,
        store: SegmentStore,
        cluster: str,
        timeout_s: float,
        clock: Clock,
        belonging: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        self._store, self._cluster, self._clock, self._belonging = store, cluster, clock, belonging
        self.timeout_s = timeout_s
        self.wake = threading.Event()
        """Set it to start a look now."""
        self.sight = Sight()
        """Replaced as a whole."""
        self._mutex = threading.Lock()
        self._begun, self._asked, self._wanted = 0, False, False
        self._first: float | None = None
        self._looked = False
        """When the first look began, and whether a look has succeeded."""
        self._since: dict[str, float] = {}
        """Sign of life → when it was first seen."""
        self._seen: dict[str, _Seen] = {}
        self._cluster_ids: dict[str, tuple[str, str]] = {}
        """Node → the sign that was read last, and the cluster id in it."""

    # ---- any thread ----

    def ask(self, *, start: bool = True) -> int:
        """Request a look, and return its number. `start`: until `forget`, every look reads what a
        start needs."""
        with self._mutex:
            self._asked = True
            self._wanted |= start
            number = self._begun + 1
        self.wake.set()
        return number

    def forget(self) -> None:
        """Called after a claim: delete the watched signs of life, because their cluster has lost
        the log."""
        self._wanted = False
        for path in self._since:
            with suppress(StorageError):
                self._store.delete(path)
        self._since = {}

    # ---- the thread that looks ----

    def begin(self) -> Look:
        """Begin the next look. What the caller does before it calls `look` happens before the files
        are read."""
        with self._mutex:
            self._begun += 1
            asked, self._asked = self._asked, False
            return Look(self._begun, asked)

    def look(self, begun: Look) -> None:
        """Read the files."""
        if not self.timeout_s:
            return
        now = self._clock.monotonic()
        self._first = now if self._first is None else self._first
        alive, first = self.alive(), not self._looked
        self._see()
        nodes: dict[str, Presence] = {}
        if self._belonging is not None and (
            self._wanted or first
        ):  # the first look too, so that it is known before a hello
            nodes = {name: self._presence(name) for name in sorted(self._belonging())}
        self.sight = Sight(begun.number, now, alive, nodes)

    def alive(self) -> str:
        """The nodes with a sign of life, as text for an error; "" if there are none. A sign counts
        until it was unchanged for `timeout_s`."""
        if not self.timeout_s:
            return ""
        now, before = self._clock.monotonic(), self._since
        since_of = {path: before.get(path, now) for path in signs(self._store, self._cluster)}
        for path, since in since_of.items():
            if now - since >= self.timeout_s and not self._store.exists(path):
                since_of[path] = now  # it was renewed, and the listing is outdated
        self._since = since_of
        ages = {
            str(layout.parse_sign_path(path)): now - since
            for path, since in since_of.items()
            if now - since < self.timeout_s
        }
        return ", ".join(
            f"node {node!r} (its sign of life has not changed for {age:.1f} s)"
            for node, age in sorted(ages.items())
        )

    def _see(self) -> None:
        """Update what is known about the running agents."""
        now, before, first = self._clock.monotonic(), self._seen, not self._looked
        sights: dict[str, _Seen] = {}
        for path in _files(
            self._store, layout.present_folder(self._cluster)
        ):  # sorted: the newest file of a node comes last
            node = str(layout.parse_sign_path(path))
            former = before.get(node)
            sights[node] = (
                former
                if former is not None and former.path == path
                else _Seen(path, now, fresh=former is not None or not first)
            )
        for node, seen in sights.items():
            if now - seen.since >= self.timeout_s and not self._store.exists(seen.path):
                sights[node] = _Seen(seen.path, now, fresh=True)  # as in `alive`
        self._seen, self._looked = sights, True

    def _presence(self, node: str) -> Presence:
        now, seen = self._clock.monotonic(), self._seen.get(node)
        if seen is None:
            watched = now - (now if self._first is None else self._first)
            return Presence(
                f"no sign of its agent, for the {watched:.0f} s that this agent has watched"
            )
        if not seen.fresh or now - seen.since >= self.timeout_s:
            return Presence(f"the sign of its agent has not changed for {now - seen.since:.0f} s")
        if self._cluster_ids.get(node, ("", ""))[0] != seen.path:
            with suppress(NotFound):  # renewed after the listing: the next look reads the new one
                self._cluster_ids[node] = seen.path, _cluster_id(self._store.read(seen.path))
        return Presence(cluster_id=self._cluster_ids.get(node, ("", ""))[1])
