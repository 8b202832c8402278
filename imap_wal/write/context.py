"""What all parts of a node's log need, in one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from imap_wal.clock import Clock, Randomness
from imap_wal.context import Context
from imap_wal.layout import Identity
from imap_wal.placement.router import OwnDiskStore
from imap_wal.security.encryption_keys import KeyRing
from imap_wal.settings import Settings
from storage_backends import SegmentStore


@dataclass(frozen=True, slots=True)
class LogContext:
    """The context, identity and settings of a node's log. `address`, `address_key`: see
    `NodeManifest`. `writers` returns, for the sessions that may append: the fewest logs that
    acknowledge a change, and the fewest losses of other nodes after which this was agreed. Its
    argument: the number of those losses until now."""

    context: Context
    identity: Identity
    settings: Settings
    address: str = ""
    address_key: str = ""
    writers: Callable[[int], tuple[int, int]] = lambda losses: (1, losses)
    key_ring: KeyRing = field(init=False)
    """The keys when this was made: those that the log is opened with."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_ring", self.context.keys.key_ring)

    @property
    def store(self) -> SegmentStore:
        return self.context.store

    @property
    def own_disk(self) -> OwnDiskStore | None:
        return self.context.own_disk

    @property
    def clock(self) -> Clock:
        return self.context.clock

    @property
    def randomness(self) -> Randomness:
        return self.context.randomness
