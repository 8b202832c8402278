"""Which maps a log has, without reading more of it than needed: an empty result of a name that does
not exist would look like an empty map."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from operator import eq

from imap_wal.entry import MAP
from imap_wal.errors import LogError
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState
from storage_backends import NotFound

NAMES_MAX = 20
"""Maps that an error names."""


class MapNames:
    """The maps of a log of which any entry is left, or a snapshot."""

    def __init__(self, log: ClusterLog) -> None:
        self._log = log
        self.known: set[str] = set()
        self.complete = True
        """Whether all files that were examined could be read."""

    def has(self, wanted: Collection[str]) -> bool:
        """Whether the log has all these maps. `known` then has them, and otherwise every map that
        can be read. Raises the errors of `lacking`."""
        return not self.lacking(wanted)

    def lacking(self, wanted: Collection[str], fits: Callable[[str, str], bool] = eq) -> set[str]:
        """Those of which the log has no map. If it has all, only manifests and perhaps some
        segments are read; otherwise all segments are. `fits`: whether a name is one of a pattern.

        Raises:
            StorageError: The storage failed.
            EncryptionError: The keys do not fit a file.
        """
        left = set(wanted)
        for names in self._steps():
            self.known |= names
            left = {each for each in left if not any(fits(name, each) for name in names)}
            if not left:
                break
        return left

    def _steps(self) -> Iterator[set[str]]:
        try:
            state = self._log.state()
        except LogError:
            self.complete = False
            return
        self.complete = not state.missing
        yield set(state.manifest.snapshots)
        yield {archive.map for node in state.nodes.values() for archive in node.manifest.archives}
        yield from self._in_segments(state)

    def _in_segments(self, state: ClusterState) -> Iterator[set[str]]:
        for scan in cluster_scans(state, snapshots=False, covered=True):
            if scan.kind != SEGMENT:
                continue
            try:
                for batch in read_scan(self._log.store, scan):
                    yield {row[MAP] for row in batch.rows}
            # The command reports damage itself. Maps of an archived or removed file may be missing.
            except (LogError, NotFound):
                self.complete = False


def why_no_map(
    logs: Iterable[ClusterLog], wanted: Collection[str], *, may_be_new: bool = False
) -> str:
    """The maps that none of the logs has, with those that they have, as text for an error. "": they
    have all of them, or a file that cannot be read may have them. `may_be_new`: also if the logs
    have no map at all.

    Raises:
        StorageError: The storage failed.
        EncryptionError: The keys do not fit a file.
    """
    left = set(wanted)
    every = [MapNames(log) for log in logs]
    for names in every:
        if not left or names.has(left):
            return ""
        left -= names.known
    if not left or not all(names.complete for names in every):
        return ""
    found = sorted(set().union(*(names.known for names in every)))
    if may_be_new and not found:
        return ""
    near = [near for name in sorted(left) for near in get_close_matches(name, found, 1)]
    guess = f"; did you mean {near[0]!r}?" if near else ""
    there = [name if name.isprintable() else repr(name) for name in found[:NAMES_MAX]]
    more = f", and {len(found) - NAMES_MAX:,} more" if len(found) > NAMES_MAX else ""
    return (
        f"no map {', '.join(map(repr, sorted(left)))}; found: "
        f"{', '.join(there) or 'none'}{more}{guess}"
    )
