"""Compares this agent's clock with those of the other agents and of the storage: if they differ,
restores keep expired entries. It also knows which agents run.

Each sign of life (`liveness.py`) has the time at which its agent wrote it, by that agent's clock.
The storage's modification time says when that was by the storage's clock. So the clocks of two
agents are compared whatever the age of their signs, and without a request to another agent. A
storage without modification times (`memory://`) is not shared by machines; nothing is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from imap_wal import layout
from imap_wal.clock import Clock, utc
from storage_backends import NotFound, SegmentStore, StoredFile

OFTEN_S = 60.0
"""For this time after its start, an agent looks at each renewal of its sign, because the others may
start too."""
PAUSE_S = 60.0
"""The pause between two looks after that, and the time after which a sign is read again."""
OLD_MS = 3 * int(PAUSE_S * 1000)
"""A sign that was not renewed for this time says nothing about the present clock."""

_log = structlog.get_logger("imap_wal.agent")


def content(cluster_id: str, now_ms: int) -> bytes:
    """What a sign contains: a line with the id of the member's cluster, and a line with the time by
    the agent's clock."""
    return f"{cluster_id}\n{now_ms}".encode()


def parse(data: bytes) -> tuple[str, int]:
    """`content`. The time is 0 if it is no number: another program wrote the file."""
    cluster_id, _, written = data.decode(errors="replace").partition("\n")
    return cluster_id, int(written) if written.isascii() and written.isdecimal() else 0


def newest_signs(store: SegmentStore, cluster: str) -> dict[str, StoredFile]:
    """The newest sign of each node, whatever its age. Raises StorageError."""
    signs: dict[str, StoredFile] = {}
    for folder in (layout.alive_folder, layout.present_folder):
        for file in store.list(folder(cluster)):
            node = layout.parse_sign_path(file.path)
            if node and file.modified_ms >= (signs[node].modified_ms if node in signs else 0):
                signs[node] = file
    return signs


@dataclass(frozen=True, slots=True)
class _Read:
    """A sign that was read. `ahead_ms`: by how much its agent's clock was ahead of the storage's.
    `at`: when it was read, in monotonic seconds. `agent`: the sign's name without its number; it
    includes the agent's epoch."""

    ahead_ms: int
    at: float
    agent: str


class Clocks:
    """`look` reads signs, on the thread that renews them; other threads use the properties."""

    def __init__(
        self, store: SegmentStore, cluster: str, node: str, skew_ms_max: int, clock: Clock
    ) -> None:
        self._store, self._cluster, self._node = store, cluster, node
        self._skew_ms_max, self._clock = skew_ms_max, clock
        self._since = clock.monotonic()
        self._looked: float | None = None
        self._read: dict[str, _Read] = {}
        self._own: _Read | None = None
        """The last sign of this agent that was read."""
        self.seen: frozenset[str] = frozenset()
        """The nodes whose agents have given a sign recently. Replaced as a whole."""
        self.ahead_ms: Mapping[str, int] = {}
        """Another clock, as text → by how many milliseconds this agent's clock is ahead of it;
        negative: it is behind. Replaced as a whole."""

    @property
    def skew_ms(self) -> int:
        """The largest known difference from another clock; negative: this one is behind."""
        return max(self.ahead_ms.values(), key=abs, default=0)

    @property
    def doubt(self) -> str:
        """Which clocks differ by more than `clock_skew_max_s`, as text; "" if none does."""
        ahead = self.ahead_ms
        other = max(ahead, key=lambda name: abs(ahead[name]), default="")
        if not other or abs(ahead[other]) <= self._skew_ms_max:
            return ""
        now_ms, difference = self._clock.now_ms(), ahead[other]
        return (
            f"the clock of node {self._node!r} shows {utc(now_ms)}, and the clock of {other} shows "
            f"{utc(now_ms - difference)}: they differ by {abs(difference) / 1000:,.0f} s, more "
            f"than clock_skew_max_s ({self._skew_ms_max / 1000:g} s); until one of them is "
            "corrected, restores keep expired entries"
        )

    def expired_until_ms(self) -> int:
        """Entries that expired at or before this time are left out; 0: none is, because it is not
        known which clock is right."""
        return 0 if self.doubt else self._clock.now_ms()

    def look(self) -> bool:
        """Compare, if it is time to do so; returns whether it was. Raises StorageError."""
        now = self._clock.monotonic()
        often = now - self._since < OFTEN_S
        if not often and self._looked is not None and now - self._looked < PAUSE_S:
            return False
        self._looked, before = now, bool(self.doubt)
        self._see(now)
        if doubt := self.doubt:
            if not before:
                _log.warning("clocks differ", node=self._node, doubt=doubt)
        elif before:
            _log.info("clocks agree again", node=self._node)
        return True

    def _see(self, now: float) -> None:
        signs = newest_signs(self._store, self._cluster)
        newest_ms = max((file.modified_ms for file in signs.values()), default=0)
        signs = {n: file for n, file in signs.items() if newest_ms - file.modified_ms <= OLD_MS}
        self.seen = frozenset(signs)
        latest: dict[str, _Read | None] = {}
        for node, file in signs.items():
            if file.modified_ms:
                try:
                    latest[node] = self._sign(node, file, now)
                except NotFound:  # it was renewed after the listing: the next look reads it
                    latest[node] = self._read.get(node)
        self._read = {node: read for node, read in latest.items() if read is not None}
        # Without its own sign, an agent still has to see which of the others are gone.
        own = self._own = self._read.get(self._node, self._own)
        if own is None:
            return
        ahead = {
            f"node {node!r}": own.ahead_ms - read.ahead_ms
            for node, read in self._read.items()
            if node != self._node
        }
        self.ahead_ms = {f"the storage {self._store.url}": own.ahead_ms, **ahead}

    def _sign(self, node: str, file: StoredFile, now: float) -> _Read | None:
        former, agent = self._read.get(node), file.path.rpartition("-")[0].rpartition("/")[2]
        if former is not None and former.agent == agent and now - former.at < PAUSE_S:
            return former
        written_ms = parse(self._store.read(file.path))[1]
        return _Read(written_ms - file.modified_ms, now, agent) if written_ms else None
