"""What a process reads and writes logs with: `open_context` makes it, and it is passed down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from imap_wal.checks import location
from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.placement import Placed, open_place
from imap_wal.placement.router import OwnDiskStore, Tails, Unasked
from imap_wal.security.encryption import keys_from
from imap_wal.security.encryption_keys import NO_KEYS, Keys
from storage_backends import SegmentStore
from storage_backends.location import Location, Place


@dataclass(frozen=True, slots=True)
class Context:
    """A storage, the keys of its files, and the process's clock and randomness. `own_disk`: see
    `Placed`. `opened`: the place of the storage; None: its URL is enough to open it."""

    store: SegmentStore
    keys: Keys = NO_KEYS
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=SystemRandomness)
    own_disk: OwnDiskStore | None = None
    opened: Location | None = None

    @property
    def place(self) -> Location:
        """Where another process finds the same storage and keys."""
        opened = self.opened or Location(self.store.url)
        return replace(opened, encryption_keys=self.keys.source)

    def with_fixed_keys(self) -> Context:
        """The same with the current keys, even if their source changes later: for a run that
        compares them once, and must write with nothing else."""
        return self if self.keys is NO_KEYS else replace(self, keys=self.keys.fixed())

    def on(self, store: SegmentStore) -> Context:
        """The same through another store: one that counts, delays or holds files."""
        return replace(self, store=store)


def open_context(
    url: Place,
    *,
    wal_dir: Place = "",
    tails: Callable[[SegmentStore], Tails] = Unasked,
    keys: str = "",
    storage: SegmentStore | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
) -> Context:
    """Open a storage. `keys`: their source; default: the one that `url` names. `storage`: an open
    storage, instead of the one at `url`. Raises the errors of `open_place` and `keys_from`."""
    place = url if isinstance(url, Location) else location(url)
    opened_keys = keys_from(keys or place.encryption_keys)
    placed = (
        open_place(place, wal_dir=wal_dir, tails=tails)
        if storage is None
        else Placed(storage, replace(place, url=storage.url))
    )
    return Context(
        placed.store,
        opened_keys,
        clock or SystemClock(),
        randomness or SystemRandomness(),
        placed.own_disk,
        placed.place,
    )
