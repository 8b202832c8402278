"""What the log keeps for a stream with images: the base of its next batch.

    a batch is committed at S    base ── images of the next batch begin here; covers nothing above S
                                 proposed ── the snapshots of now; the base as soon as S is above
                                             their marks

So two bases are kept at most, however often the log is compacted while a batch runs. See
`imap_wal.manifest.readers` for how a base is replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress

from imap_wal.errors import InvalidSetting
from imap_wal.manifest.reader_manifest import Base, ReaderManifest
from imap_wal.manifest.readers import Reader
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from imap_wal.retention.bases import base_of
from pyspark_imap_wal.changes.known import Places, is_below, known_at, with_base

_log = logging.getLogger("imap_wal")


class ReaderRegistration:
    """The registration of a stream as a reader. `maps`: those that it follows; None: all. `images`:
    whether it needs the state of the maps before each batch."""

    def __init__(
        self, log: ClusterLog, name: str, maps: Collection[str] | None, *, images: bool
    ) -> None:
        self._log, self._name, self._maps, self._images = log, name, maps, images
        self._reader = Reader(log.store, log.folder, name, log.clock, log.randomness)
        self._looked: Base | None = None
        """The proposed base, if this process has checked that its files are kept."""

    def begin(self, places: Places) -> None:
        """Register a new query, which has read up to `places`."""
        self._reader.begin(places)

    def read(self) -> ReaderManifest:
        """What is registered. Raises `InvalidSetting` if the reader was forgotten."""
        return self._reader.read()

    def keep(self, state: ClusterState, current: ClusterState) -> bool:
        """Make the base of the next batch from `current`: `state`, or `state` with former
        snapshots. False: the snapshots were replaced meanwhile."""
        base = base_of(state, current, self._maps, None)
        self._reader.propose(base)
        if not self._is_current(state):
            return False
        self._reader.advance({}, base)
        return True

    def advance(self, places: Places, look: Callable[[], ClusterState]) -> None:
        """Publish that a batch up to `places` is committed. `look` returns the state of the
        logs."""
        if not self._images:
            self._reader.advance(places)
            return
        registered, state = self.read(), look()
        base = registered.base
        # There is no base if the process ended between the registration and its first base. A base
        # is of no use if a removal had read the readers before it was registered, or if the query
        # follows more maps now.
        if base is None or with_base(self._log, state, base, self._maps) is None:
            self._reader.advance(places, base)
            with suppress(InvalidSetting):  # the next batch raises it
                self.keep(state, known_at(self._log, state, places, self._maps))
            return
        proposed = self._looked
        if proposed is None or proposed != registered.proposed:  # replaced: may not be kept
            proposed = self._propose(state, base)
        if proposed is not None and is_below(proposed, state, places):
            base, proposed = proposed, None
        self._looked = proposed
        self._reader.advance(places, base, proposed)

    def _propose(self, state: ClusterState, base: Base) -> Base | None:
        new = base_of(state, state, self._maps, base)
        if new.is_same(base):
            return None
        self._reader.propose(new)
        return new if self._is_current(state) else None

    def _is_current(self, state: ClusterState) -> bool:
        """Whether the cluster has the snapshots of `state` now."""
        return self._log.manifest().snapshots == state.manifest.snapshots
