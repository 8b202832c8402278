"""Whether a log began after a former moment: an empty result of that moment would look like an
empty map."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from imap_wal.entry import TIMESTAMP_MS
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState


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
