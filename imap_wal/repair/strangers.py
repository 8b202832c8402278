"""Finds files in a node's `wal/` that have the name of a segment and are not of this log. A repair
puts them aside: otherwise a single name would stop it, or make true segments void.

- The number is far above all that are known: the segments between them would be missing.
- Because of the name, other files do not count: they have a lower epoch and the same or a higher
  number, or a recovery seems to have copied them. But nothing in the file is of this log.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from imap_wal.context import Context
from imap_wal.errors import EncryptionError, LogError, UnsupportedVersion
from imap_wal.manifest import key_checks
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.segment.listing import SegmentFile, WalFolder, sorted_out
from imap_wal.segment.reader import SegmentReader
from imap_wal.segment.salvage import scan_segment
from storage_backends import NotFound

MISSING_MAX = 10_000
"""Up to this many missing segments may be damage. If there were more, the number in the file's name
is wrong."""
FAR = f"its number is more than {MISSING_MAX:,} above those of the other segments"
NOT_OURS = "because of its name other segments would not count, and nothing in it is of this log"


def without_strangers(
    context: Context, view: ClusterState, node: NodeState, highest: int
) -> tuple[NodeState, dict[SegmentFile, str]]:
    """The node without those files, and for each of them the reason. `highest`: the highest
    number that manifests have; 0: they have none."""
    strangers: dict[SegmentFile, str] = {}
    reach = highest
    for segment in sorted(node.all_segments, key=lambda segment: segment.number):
        if reach and segment.number > reach + MISSING_MAX:
            strangers[segment] = FAR
        else:
            reach = max(reach, segment.number)
    for segment in node.wal.segments if node.wal.void or node.wal.copied else ():
        hides = segment not in strangers and _hides_others(node, strangers, segment)
        if hides and not _is_ours(context, view, node, segment):
            strangers[segment] = NOT_OURS
    if not strangers:
        return node, strangers
    gone = {segment.path for segment in strangers}
    files = tuple(file for file in node.files if file.path not in gone)
    return replace(node, files=files, wal=_listed(node, gone)), strangers


def is_foreign(
    context: Context, view: ClusterState, node: NodeState, error: EncryptionError
) -> bool:
    """Whether a segment with this error can be put aside, because all keys are given that were ever
    used to write here. One without encryption is put aside only beside encrypted ones: otherwise
    the list of keys may be wrong."""
    if not key_checks.all_given(context.keys.key_ring, view.manifest.keys):
        return False
    return bool(error.key_id or error.is_missing) or any(
        _is_encrypted(context, segment.path) for segment in node.all_segments
    )


def _is_encrypted(context: Context, path: str) -> bool:
    """Whether a segment is encrypted with one of the keys, for its place."""
    try:
        reader = SegmentReader(context.store, path)
        reader.check_keys(context.keys)
    except (LogError, EncryptionError, NotFound):
        return False
    return bool(reader.header.key_id)


def _hides_others(
    node: NodeState, strangers: Collection[SegmentFile], segment: SegmentFile
) -> bool:
    gone = {stranger.path for stranger in strangers}
    with_it = {counting.path for counting in _listed(node, gone).segments}
    without = {counting.path for counting in _listed(node, {*gone, segment.path}).segments}
    return not without <= with_it


def _is_ours(context: Context, view: ClusterState, node: NodeState, segment: SegmentFile) -> bool:
    home = view.home(node, segment)
    try:
        scan = scan_segment(context, segment.path, home)
    except UnsupportedVersion:
        return True  # the repair of this segment refuses it
    except EncryptionError as error:
        return not is_foreign(context, view, node, error)
    return bool(scan.frames) or (scan.header is not None and home.admits(scan.header.home))


def _listed(node: NodeState, gone: Collection[str]) -> WalFolder:
    return sorted_out(
        (
            file
            for file in node.files
            if file.path.startswith(f"{node.folder}/wal/") and file.path not in gone
        ),
        node.manifest.archived,
        node.manifest.begins,
    )
