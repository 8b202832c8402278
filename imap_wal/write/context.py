"""What every part of a node's log works with, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from imap_wal.clock import Clock, Randomness
from imap_wal.layout import Identity
from imap_wal.security.encryption import keys_of
from imap_wal.security.encryption_keys import KeyRing
from imap_wal.settings import Settings
from storage_backends import SegmentStore


@dataclass(frozen=True, slots=True)
class LogContext:
    """Where a node's log is, whose it is, how it is written, and the clock and the randomness of
    its process."""

    store: SegmentStore
    identity: Identity
    settings: Settings
    clock: Clock
    randomness: Randomness
    ring: KeyRing = field(init=False)
    """The keys that the store had when this was made."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ring", keys_of(self.store).ring)
