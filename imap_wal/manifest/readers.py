"""Readers that follow a log from outside: how far each one has read. What a reader has not read is
not removed, even if a snapshot covers it.

A reader publishes its positions in numbered manifests of its own, in `readers/{name}/`. They only
grow, unless the reader begins anew. So a removal that used an older position of the reader has
removed less than it could.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from imap_wal import layout
from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.errors import InvalidSetting
from imap_wal.format import START, Position
from imap_wal.manifest.document import checked, fields_of, require
from imap_wal.manifest.store import ManifestLog
from storage_backends import SegmentStore


@dataclass(frozen=True, slots=True)
class ReaderManifest:
    """`positions`: node → the last position that was read; a node that is not in it has not been
    read at all. `forgotten`: nothing is kept for this reader any more."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    updated_ms: int = 0
    forgotten: bool = False

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        require(data, "positions", "updated_ms", "forgotten")
        return checked(data, cls)


def readers_of(store: SegmentStore, cluster_folder: str) -> dict[str, ReaderManifest]:
    """Name → the state of every reader for which something is kept."""
    found = {}
    for component in store.folders(layout.readers_folder(cluster_folder)):
        name = layout.decode(component)
        manifests = _manifests(store, cluster_folder, name, SystemClock(), SystemRandomness())
        number, reader = manifests.read()
        if number and not reader.forgotten:
            found[name] = reader
    return found


def read_by_all(store: SegmentStore, cluster_folder: str, node: str, end: Position) -> Position:
    """The position up to which every reader has read a node's entries; `end` without readers."""
    readers = readers_of(store, cluster_folder).values()
    return min((reader.positions.get(node, START) for reader in readers), default=end)


class Reader:
    """How far one reader has read, in its manifests."""

    def __init__(
        self,
        store: SegmentStore,
        cluster_folder: str,
        name: str,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._name, self._clock = name, clock
        self._manifests = _manifests(store, cluster_folder, name, clock, randomness)

    def begin(self, positions: Mapping[str, Position]) -> None:
        """Register the reader, or let it begin anew. What it wants to read may have been removed
        before, so it has to check that after this call."""
        new = ReaderManifest(dict(positions), self._clock.now_ms())
        self._manifests.update(lambda reader: new)

    def advance(self, positions: Mapping[str, Position]) -> None:
        """Publish how far the reader has read. A lower position than before changes nothing.
        Raises `InvalidSetting` if the reader was forgotten."""

        def change(reader: ReaderManifest) -> ReaderManifest:
            if reader.forgotten:
                raise InvalidSetting(
                    f"reader {self._name!r} was forgotten (`imap-wal prune --forget-reader`), so "
                    "the log no longer keeps what it has not read: begin the query anew, without "
                    "its checkpoint"
                )
            farther = {
                node: max(position, reader.positions.get(node, START))
                for node, position in positions.items()
            }
            positions_now = {**reader.positions, **farther}
            if reader.updated_ms and positions_now == reader.positions:
                return reader
            return replace(reader, positions=positions_now, updated_ms=self._clock.now_ms())

        self._manifests.update(change)


def forget(
    store: SegmentStore, cluster_folder: str, name: str, clock: Clock, randomness: Randomness
) -> bool:
    """Keep nothing for a reader any more. False if there is none of this name."""
    if name not in readers_of(store, cluster_folder):
        return False
    manifests = _manifests(store, cluster_folder, name, clock, randomness)
    manifests.update(lambda reader: replace(reader, forgotten=True, updated_ms=clock.now_ms()))
    return True


def _manifests(
    store: SegmentStore, cluster_folder: str, name: str, clock: Clock, randomness: Randomness
) -> ManifestLog[ReaderManifest]:
    folder = f"{layout.readers_folder(cluster_folder)}/{layout.encode(name)}"
    return ManifestLog(store, folder, ReaderManifest, ReaderManifest(), clock, randomness)
