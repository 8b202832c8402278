"""One life of a log with everything that is done to logs, and a reference that knows what the log
must contain, whatever happens meanwhile.

The reference is two dicts: what was acknowledged, and the same with the one operation that is under
way. After any fault the map equals the one or the other. If a deleted key exists again, it is a
resurrected delete; if an acknowledged value is missing, it is a lost record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import imap_wal
from imap_wal.clock import SystemRandomness
from imap_wal.context import Context
from imap_wal.errors import ImapWalError, NotAppended, StorageUnavailable
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends import SegmentStore, StorageError
from tests.support import FakeClock, embedded

Entries = dict[str, tuple[Any, int]]
"""Key → (value, when it expires in Unix milliseconds; 0: never)."""
Step = tuple[Any, ...]

WORK: tuple[Step, ...] = (
    ("put", "a", 1),
    ("put", "b", 1),
    ("delete", "a"),
    ("update", {"a": 2, "c": 1, "d": "x" * 200}),
    ("ttl", "t", 1, 60),
    ("rotate",),
    ("put", "b", 2),
    ("delete", "c"),
    ("archive",),
    ("put", "e", 1),
    ("rewrite",),
    ("prune",),
    ("put", "a", 3),
    ("delete", "b"),
    ("reopen",),
    ("put", "c", 4),
    ("wait", 61),
    ("delete", "a"),
    ("rotate",),
    ("rewrite",),
    ("put", "f", "y" * 700),
    ("prune",),
    ("archive",),
    ("prune",),
    ("delete", "d"),
    ("stop",),
    ("put", "t", 2),
    ("update", {"a": 5, "g": 1}),
)
"""Small segments: some of these rotate by size too."""


@dataclass
class Reference:
    """What the log must contain."""

    clock: FakeClock = field(default_factory=FakeClock)
    state: Entries = field(default_factory=dict)
    pending: Entries | None = None
    on_change: Callable[[], None] = lambda: None
    acknowledged: int = 0

    def begin(self, pairs: dict[str, Any], expires_at_ms: int = 0) -> None:
        """An operation begins; a value of None is a deletion."""
        after = dict(self.state)
        for key, value in pairs.items():
            if value is None:
                after.pop(key, None)
            else:
                after[key] = (value, expires_at_ms)
        self.pending = after
        self.on_change()

    def acknowledge(self) -> None:
        assert self.pending is not None
        self.state, self.pending = self.pending, None
        self.acknowledged += 1
        self.on_change()

    def refuse(self) -> None:
        """The operation failed, and it is certain that nothing of it is in the log."""
        self.pending = None
        self.on_change()

    def settle(self, found: dict[str, Any], why: object = "") -> None:
        """What was found after a fault must be one of the two; from now on the log must contain
        it."""
        now = self.clock.now_ms()
        expected = live(self.state, now)
        if found == expected:
            self.pending = None
        elif self.pending is not None and found == live(self.pending, now):
            self.state, self.pending = self.pending, None
        else:
            may_be = live(self.pending or self.state, now)
            lost = {
                key: value for key, value in expected.items() if key not in found and key in may_be
            }
            resurrected = {
                key: value
                for key, value in found.items()
                if key not in expected and key not in may_be
            }
            raise AssertionError(
                f"{why}: lost {lost}, resurrected {resurrected}; found {found}, acknowledged "
                f"{expected}, perhaps {may_be}"
            )
        self.on_change()


def live(entries: Entries, now_ms: int) -> dict[str, Any]:
    return {key: value for key, (value, until) in entries.items() if not 0 < until <= now_ms}


class Life:
    """Plays steps on a log of node n1, and reports them to the reference."""

    def __init__(self, storage: SegmentStore, reference: Reference, **options: Any) -> None:
        self.storage, self.reference = storage, reference
        self.options = {
            "segment_bytes": 600,
            "preallocate": False,
            "clock": reference.clock,
            **options,
        }
        self.store: imap_wal.Store | None = None

    def open(self, why: object = "an open") -> imap_wal.Store:
        self.store = embedded(self.storage, **self.options)
        self.reference.settle(dict(self.store.map("m").items()), why)
        return self.store

    def cluster(self) -> ClusterLog:
        return ClusterLog(
            Context(self.storage, clock=self.reference.clock, randomness=SystemRandomness()),
            "default",
            "embedded",
        )

    def play(self, steps: Sequence[Step] = WORK) -> None:
        if self.store is None:
            self.open()
        for step in steps:
            self.step(*step)

    def play_through(self, steps: Sequence[Step] = WORK) -> int:
        """The same on a storage that sometimes fails: no other errors than those of imap-wal,
        memory unchanged by what failed, and work continues after a reopen. Returns how many steps
        failed."""
        failures = 0
        for step in steps:
            try:
                if self.store is None:
                    self.open()
                self.step(*step)
                continue
            except NotAppended:
                self.reference.refuse()
            except (ImapWalError, StorageError):
                pass
            failures += 1
            if self.store is not None and not self.store.closed:
                now = self.reference.clock.now_ms()
                assert dict(self.store.map("m").items()) == live(self.reference.state, now), (
                    f"{step} failed and changed memory"
                )
                if self.store.committer.failure is None:
                    continue  # an archive, a rewrite: the log continues
            self.reopen_when_it_can()
        return failures

    def reopen_when_it_can(self) -> None:
        for attempt in range(50):
            try:
                self.close()
            except ImapWalError:
                pass
            try:
                self.open("a reopen after a fault")
                return
            except StorageUnavailable:
                if attempt == 49:
                    raise

    def close(self) -> None:
        if self.store is not None:
            store, self.store = self.store, None
            store.close()

    def step(self, kind: str, *what: Any) -> None:
        assert self.store is not None
        m, reference = self.store.map("m"), self.reference
        match kind:
            case "put":
                reference.begin({what[0]: what[1]})
                m[what[0]] = what[1]
                reference.acknowledge()
            case "ttl":
                reference.begin({what[0]: what[1]}, reference.clock.now_ms() + what[2] * 1000)
                m.put(what[0], what[1], ttl=what[2])
                reference.acknowledge()
            case "update":
                reference.begin(what[0])
                m.update(what[0])
                reference.acknowledge()
            case "delete":
                if what[0] in m:
                    reference.begin({what[0]: None})
                    del m[what[0]]
                    reference.acknowledge()
            case "wait":
                reference.clock.advance(what[0])
                reference.on_change()
            case "rotate":
                self.store.committer.rotate()
            case "archive":
                self.store.archive()
            case "rewrite":
                rewrite(
                    self.cluster(), LocalEngine(Settings(preallocate=False)), skew_ms_max=2**60
                )  # this clock does not move
            case "prune":
                prune(self.cluster())
            case "reopen":
                self.close()
                self.open()
            case "stop":  # no clean end: the next open recovers
                self.store.committer.close(clean=False)
                self.open()
            case _:
                raise AssertionError(kind)


def look_and_go_on(
    storage: SegmentStore, reference: Reference, why: object, **options: Any
) -> None:
    """After a fault: open, compare, and repeat all operations on logs."""
    life = Life(storage, reference, **options)
    life.open(why)
    life.play(
        (
            ("put", "after", 1),
            ("delete", "a"),
            ("archive",),
            ("rewrite",),
            ("prune",),
            ("put", "after", 2),
        )
    )
    life.close()
    life.open(f"{why}, and when work continued")
    life.close()
