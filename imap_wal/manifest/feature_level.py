"""The feature level of a log: which formats may be written in it. See
docs/decisions/0057-a-log-has-a-feature-level.md."""

from __future__ import annotations

from enum import IntEnum


class FeatureLevel(IntEnum):
    """The number is the highest format number that a manifest of the log may have. A release that
    does not know this format refuses the cluster's manifest, and changes nothing."""

    CLEARS = 3
    """All that releases without levels wrote."""
    SORTED_ARCHIVES = 4
    """Archives whose rows are sorted by key."""
    COPIES = 5
    """Sessions whose changes are in the logs of several nodes, with one order."""
    LISTS = 6
    """Archives of a node in list files."""
    KEPT_SNAPSHOTS = 7
    """Readers for which files of replaced snapshots are kept."""
    PART_LISTS = 8
    """Files of snapshots in list files; Parquet files with decoded columns."""

    @property
    def brings(self) -> str:
        """What a log gains at this level, for people."""
        return _BRINGS[self]


_BRINGS = {
    FeatureLevel.CLEARS: "the formats of the first releases",
    FeatureLevel.SORTED_ARCHIVES: "archives sorted by key: a read of one key reads a small part of "
    "them",
    FeatureLevel.COPIES: "copies: a plug-in may append each change to several agents",
    FeatureLevel.LISTS: "archives in list files: an update of a node's manifest costs about the "
    "same with few archives and with many",
    FeatureLevel.KEPT_SNAPSHOTS: "streams with images beside compaction: what they need of "
    "replaced snapshots is kept; copies on own disks: a restore does not need a disk whose changes "
    "other logs have",
    FeatureLevel.PART_LISTS: "files of snapshots in list files: an update of the cluster's "
    "manifest costs about the same with few files and with many; `imap-wal decode`",
}
FIRST = min(FeatureLevel)
"""Of a log whose manifest names no level, and of a node whose release did not know levels."""
PROMISES = FeatureLevel.KEPT_SNAPSHOTS
"""From this level on, a node's manifest says which segments have copies (`NodeManifest.copied`).
Releases that do not know `ClusterManifest.losses` would remove it, and refuse this level."""
NEWEST = max(FeatureLevel)
"""The highest level that this release reads and writes. A new log begins with it."""
