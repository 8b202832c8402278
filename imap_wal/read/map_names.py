"""Which maps a log has, without reading more of it than needed: an empty result of a name that does
not exist would look like an empty map."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches

from imap_wal.entry import MAP, TIMESTAMP_MS
from imap_wal.errors import LogError
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState
from storage_backends import NotFound

NAMES_MAX = 20
"""How many maps or other names an error has."""


class MapNames:
    """The maps of a log of which any entry is left, or a snapshot. Both iterators return them in
    steps, and the names in different steps may be the same.

    Raises:
        StorageError: The storage failed.
        EncryptionError: The keys do not fit a file.
    """

    def __init__(self, log: ClusterLog) -> None:
        self._log = log
        self._state: ClusterState | None = None
        self.known: set[str] = set()
        """Those of the steps that were taken."""
        self.complete = True
        """Whether all files that were examined could be read."""

    def in_manifests(self) -> Iterator[set[str]]:
        """The maps with snapshots and archives. Reads no other files."""
        try:
            self._state = state = self._log.state()
        except LogError:
            self.complete = False
            return
        self.complete = not state.missing
        yield self._noted(set(state.manifest.snapshots))
        archives = (archive for node in state.nodes.values() for archive in node.manifest.archives)
        yield self._noted({archive.map for archive in archives})

    def in_segments(self) -> Iterator[set[str]]:
        """The maps with entries in segments, after `in_manifests`. Reads all of them."""
        if self._state is None:
            return
        for scan in cluster_scans(self._state, snapshots=False, covered=True):
            if scan.kind != SEGMENT:
                continue
            try:
                for batch in read_scan(self._log.context, scan):
                    yield self._noted({row[MAP] for row in batch.rows})
            # The command reports damage itself. Maps of an archived or removed file may be missing.
            except (LogError, NotFound):
                self.complete = False

    def _noted(self, names: set[str]) -> set[str]:
        self.known |= names
        return names


def why_no_map(
    logs: Iterable[ClusterLog], maps: Collection[str], *, may_be_new: bool = False
) -> str:
    """The maps that none of the logs has, with those that they have, as text for an error. "": they
    have all of them, or a file that cannot be read may have them. `may_be_new`: also if the logs
    have no map at all. Segments are read only if no manifest has a map.

    Raises:
        StorageError: The storage failed.
        EncryptionError: The keys do not fit a file.
    """
    left = set(maps)
    if not left:
        return ""
    every = [MapNames(log) for log in logs]
    for look in (MapNames.in_manifests, MapNames.in_segments):
        for names in every:
            for new_names in look(names):
                left -= new_names
                if not left:
                    return ""
    if not all(names.complete for names in every):
        return ""
    there = sorted(set().union(*(names.known for names in every)))
    if may_be_new and not there:
        return ""
    absent = sorted(left)
    # To compare all names with all takes minutes if there are thousands.
    near = [near for name in absent[:NAMES_MAX] for near in get_close_matches(name, there, 1)]
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return f"no map {_some(absent, repr)}; found: {some_names(there)}{guess}"


def some_names(names: Sequence[str]) -> str:
    """Names for an error, which has only the first ones of many; "none" without any."""
    return _some(names, lambda name: name if name.isprintable() else repr(name)) or "none"


def _some(names: Sequence[str], shown: Callable[[str], str]) -> str:
    more = f", and {len(names) - NAMES_MAX:,} more" if len(names) > NAMES_MAX else ""
    return ", ".join(map(shown, names[:NAMES_MAX])) + more


# Whether a log began after a former moment: an empty result of that moment would look like an empty
# map.


def first_after(oldest_ms: int | None, snapshots: Iterable[str], time_ms: int) -> int | None:
    """The time of the oldest entry if it is after `time_ms`, otherwise None. None also if there is
    no entry, or a snapshot of a map, which may have replaced earlier ones."""
    if oldest_ms is None or oldest_ms <= time_ms or any(True for _ in snapshots):
        return None
    return oldest_ms


def began_after(
    log: ClusterLog, state: ClusterState, maps: Collection[str] | None, time_ms: int
) -> int | None:
    """The same for these maps (None: all). Reads until an entry is old enough, which is usually in
    the first file. `state`: as read at that time.

    Raises:
        LogError: A log is damaged.
        NotFound: A file was removed meanwhile.
        StorageError: The storage failed.
    """
    if any(maps is None or name in maps for name in state.manifest.snapshots):
        return None
    oldest: int | None = None
    for changes in log.all_changes(state, maps):
        for row in changes.rows:
            if row[TIMESTAMP_MS] <= time_ms:
                return None
            oldest = row[TIMESTAMP_MS] if oldest is None else min(oldest, row[TIMESTAMP_MS])
    return oldest
