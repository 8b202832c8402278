"""What all parts of a node's log need, in one value."""

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
    """The place, identity and settings of a node's log, and the process's clock and randomness.
    `address`, `address_key`: see `NodeManifest`."""

    store: SegmentStore
    identity: Identity
    settings: Settings
    clock: Clock
    randomness: Randomness
    address: str = ""
    address_key: str = ""
    key_ring: KeyRing = field(init=False)
    """The keys of the store when this was made."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_ring", keys_of(self.store).key_ring)
