"""Which agents run, and whether the cluster that has the log is alive: small files that change.

    SignOfLife   one file of each agent, created again under the next number, the former deleted:
                 in `claims/alive/` while it hears members of the newest incarnation, otherwise in
                 `claims/present/`, with the id of the cluster that its member is in
    Watch        what an agent has seen of the files of others: a new lifetime is claimed only when
                 no cluster is alive, and when the nodes that it waits for (`start.py`) are present

The watching agent only checks whether the files change, by its own monotonic clock. This decides
when a claim is made, never what counts: the claim itself is safe at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from imap_wal import layout
from imap_wal.clock import Clock
from imap_wal.worker import Worker
from storage_backends import NotFound, SegmentStore, StorageError

RENEWALS = 3
"""How many times a sign is renewed within the time after which it no longer counts."""
FIRST_PAUSE_S = 0.1
"""The first renewals of an agent that starts come sooner, so that agents that start together see
each other soon; the pause doubles each time."""


class SignOfLife:
    """Renewed by its own thread. While that hears no member it updates `watch`, so a new cluster
    need not wait for the whole time. `heard`, `greeted` and `silent` do not wait for the
    storage."""

    def __init__(
        self,
        store: SegmentStore,
        cluster: str,
        node: str,
        epoch: int,
        timeout_s: float,
        watch: Watch,
        clock: Clock,
    ) -> None:
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
        self._alive = _File(store, lambda number: layout.alive_path(cluster, node, epoch, number))
        self._present = _File(
            store, lambda number: layout.present_path(cluster, node, epoch, number)
        )
        self._due = clock.monotonic()
        self._unheard = 0
        self._heard = 0
        """The incarnation of which a member was heard since the last renewal."""
        self._silent = False
        self._greeted, self._greeted_at = "", 0.0
        """The id of the cluster that the member is in, and when it was heard last."""
        self.worker = Worker("imap-wal-alive", self._turn)

    def start(self) -> None:
        """Begin. Signs of earlier runs of this node's agent are deleted: no member is heard yet."""
        with suppress(StorageError):
            remove_signs(self._store, self._cluster, self._node)
        self.worker.start()

    def greeted(self, cluster_id: str) -> None:
        """A member of this cluster has sent something, at least a hello that was refused."""
        self._greeted, self._greeted_at = cluster_id, self._clock.monotonic()

    def heard(self, incarnation: int) -> None:
        """A member of this incarnation, the newest one known here, has sent something."""
        self._heard = incarnation
        if not self._alive.path:
            self._watch.wake.set()  # the first sign comes at once

    def silent(self) -> None:
        """The last member has said bye: the sign is deleted now. A member that is heard later makes
        a new one."""
        self._heard, self._silent, self._greeted = 0, True, ""
        self._watch.wake.set()

    def stop(self, timeout_s: float, clean: bool) -> None:
        """End the thread; after a clean stop no sign is left. It waits at most `timeout_s` for a
        storage that does not answer."""
        self.worker.stopping.set()
        self._watch.wake.set()
        if self.worker.stop(timeout_s) and clean:
            with suppress(StorageError):
                self._alive.remove()
                self._present.remove()

    def _turn(self, worker: Worker) -> bool:
        self._watch.wake.wait(max(0.0, self._due - self._clock.monotonic()))
        self._watch.wake.clear()
        if worker.stopping.is_set():
            return False
        look, now = self._watch.begin(), self._clock.monotonic()
        due, silent = now >= self._due, self._silent and not self._heard
        self._silent = False
        heard = self._renew_alive(due)
        self._unheard = 0 if heard else self._unheard + due
        if due or heard:
            self._pause_s = (
                self._every_s if self._alive.path else min(self._every_s, 2 * self._pause_s)
            )
            self._due = now + self._pause_s
        if due and now - self._greeted_at >= self._timeout_s:
            self._greeted = ""
        # Without a bye its members were killed: the next cluster need not wait for them either.
        over = not heard and (not self._alive.path or silent or self._unheard >= RENEWALS)
        greeted = self._greeted.encode()
        if not heard and (
            due or (over and (not self._present.path or self._present.content != greeted))
        ):
            self._present.renew(greeted)
        if over:
            self._alive.remove()
        # After its own sign: of two clusters that start at the same time, one sees the other.
        if look.asked or over or (due and not heard):
            self._watch.look(look)
        return True

    def _renew_alive(self, due: bool) -> bool:
        """Whether a member of the newest incarnation was heard; then its sign is renewed."""
        if not self._heard or not (due or not self._alive.path):
            return False
        heard, self._heard = self._heard, 0
        # Another cluster may have claimed the log since, and this member may not know it yet.
        if not self._store.exists(layout.claim_path(self._cluster, heard)):
            return False
        self._alive.renew()
        self._present.remove()
        return True


class _File:
    """A sign of this agent. `path` is "" while there is none."""

    def __init__(self, store: SegmentStore, path_of: Callable[[int], str]) -> None:
        self._store, self._path_of, self._number = store, path_of, 0
        self.path, self.content = "", b""

    def renew(self, content: bytes = b"") -> None:
        self._number += 1
        following = self._path_of(self._number)
        self._store.create(following, content)
        former, self.path, self.content = self.path, following, content
        if former:
            self._store.delete(former)

    def remove(self) -> None:
        path, self.path = self.path, ""
        if path:
            self._store.delete(path)


def signs(store: SegmentStore, cluster: str) -> list[str]:
    """The signs of life of the cluster that has the log, as they are now."""
    return _files(store, layout.alive_folder(cluster))


def present(store: SegmentStore, cluster: str) -> dict[str, str]:
    """Nodes whose agents run and hear no member of the cluster that has the log, or did before they
    were killed, with the ids of the clusters that their members are in ("": none was heard)."""
    found: dict[str, str] = {}
    for path in _files(store, layout.present_folder(cluster)):
        with suppress(NotFound):
            found[str(layout.parse_sign_path(path))] = _text(store.read(path))
    return found


def remove_signs(store: SegmentStore, cluster: str, node: str) -> None:
    """Delete all signs of a node."""
    for path in (*signs(store, cluster), *_files(store, layout.present_folder(cluster))):
        if layout.parse_sign_path(path) == node:
            store.delete(path)


def _files(store: SegmentStore, folder: str) -> list[str]:
    return sorted(
        file.path for file in store.list(folder) if layout.parse_sign_path(file.path) is not None
    )


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Look:
    """A look that has begun. `asked`: for a hello that waits for it."""

    number: int
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Presence:
    """What is known of a node. `absent`: why it does not count as present, "" if its agent runs.
    `cluster_id`: of its member; "": none was heard."""

    absent: str = ""
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """What look `number` found, which began at `at` (monotonic). `alive`: nodes whose agents hear
    the cluster that has the log, as text, "" if there is none. `nodes`: those that a new cluster
    may have to wait for."""

    number: int = 0
    at: float = 0.0
    alive: str = ""
    nodes: Mapping[str, Presence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest file of a node, and when it was seen first. `fresh`: it is not what a killed agent
    left, as it appeared after an earlier look."""

    path: str
    since: float
    fresh: bool


class Watch:
    """`look` reads the files, on one thread; any other thread uses `sight`. `timeout_s` 0: no
    cluster counts as alive, and nothing is read. `belonging` reads the names of the nodes to wait
    for."""

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
        """Set to have a look now."""
        self.sight = Sight()
        """Replaced as a whole."""
        self._mutex = threading.Lock()
        self._begun, self._asked, self._wanted = 0, False, False
        self._first: float | None = None
        self._looked = False
        """When the first look began, and whether one succeeded."""
        self._since: dict[str, float] = {}
        """Sign of life → when it was seen first."""
        self._seen: dict[str, _Seen] = {}
        self._cluster_ids: dict[str, tuple[str, str]] = {}
        """Node → the sign that was read last, and what is in it."""

    # ---- any thread ----

    def ask(self) -> int:
        """Have a look soon; its number. Until `forget` every look reads what a start needs."""
        with self._mutex:
            self._asked = self._wanted = True
            number = self._begun + 1
        self.wake.set()
        return number

    def forget(self) -> None:
        """After a claim: delete the watched signs of life, as their cluster has lost the log."""
        self._wanted = False
        for path in self._since:
            with suppress(StorageError):
                self._store.delete(path)
        self._since = {}

    # ---- the thread that looks ----

    def begin(self) -> Look:
        """The next look. What the caller does between this and `look` comes before what it sees."""
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
        ):  # at first, so that it is known before a hello
            nodes = {name: self._presence(name) for name in sorted(self._belonging())}
        self.sight = Sight(begun.number, now, alive, nodes)

    def alive(self) -> str:
        """The nodes with a sign of life, as text for an error; "" if there is none. A sign counts
        until it has been seen unchanged for `timeout_s`."""
        if not self.timeout_s:
            return ""
        now, before = self._clock.monotonic(), self._since
        found = {path: before.get(path, now) for path in signs(self._store, self._cluster)}
        for path, since in found.items():
            if now - since >= self.timeout_s and not self._store.exists(path):
                found[path] = now  # it was renewed, and the listing is too old to show that
        self._since = found
        ages = {
            str(layout.parse_sign_path(path)): now - since
            for path, since in found.items()
            if now - since < self.timeout_s
        }
        return ", ".join(
            f"node {node!r} (its sign of life has not changed for {age:.1f} s)"
            for node, age in sorted(ages.items())
        )

    def _see(self) -> None:
        """Update what is known of the agents that run."""
        now, before, first = self._clock.monotonic(), self._seen, not self._looked
        found: dict[str, _Seen] = {}
        for path in _files(
            self._store, layout.present_folder(self._cluster)
        ):  # of a node the newest comes last
            node = str(layout.parse_sign_path(path))
            known = before.get(node)
            found[node] = (
                known
                if known is not None and known.path == path
                else _Seen(path, now, fresh=known is not None or not first)
            )
        for node, seen in found.items():
            if now - seen.since >= self.timeout_s and not self._store.exists(seen.path):
                found[node] = _Seen(seen.path, now, fresh=True)  # as in `alive`
        self._seen, self._looked = found, True

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
            with suppress(NotFound):  # renewed since it was listed: the next look shows the new one
                self._cluster_ids[node] = seen.path, _text(self._store.read(seen.path))
        return Presence(cluster_id=self._cluster_ids.get(node, ("", ""))[1])
