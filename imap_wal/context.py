"""What a process reads and writes logs with: made in one place, and passed down."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.placement.own_disk import OwnDiskStore
from imap_wal.security.encryption import keys_of
from imap_wal.security.encryption_keys import NO_KEYS, Keys
from storage_backends import SegmentStore


@dataclass(frozen=True, slots=True)
class Context:
    """A storage, the keys of its files, and the process's clock and randomness. `own_disk`: the
    storage again, if each node has its segments on a disk of its own."""

    store: SegmentStore
    keys: Keys = NO_KEYS
    own_disk: OwnDiskStore | None = None
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=SystemRandomness)

    def __post_init__(self) -> None:
        if self.keys is NO_KEYS:
            object.__setattr__(self, "keys", keys_of(self.store))
        if self.own_disk is None:
            placed: object = self.store
            while (inner := getattr(placed, "inner", None)) is not None:
                placed = inner
            if isinstance(placed, OwnDiskStore):
                object.__setattr__(self, "own_disk", placed)

    def on(self, store: SegmentStore) -> Context:
        """The same through another store: one that counts, delays or holds files."""
        return replace(self, store=store)
