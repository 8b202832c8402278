"""Finds file names of a node that its manifest cannot know.

File names have epochs and positions. If these are newer than the manifest, an older copy replaced
it, or newer manifests were removed. A writer that continued from it would use epochs and names a
second time. So an open refuses it, `verify` reports it, and `repair` uses the files as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from imap_wal import layout
from imap_wal.manifest.node import NodeManifest
from storage_backends import StoredFile


@dataclass(frozen=True, slots=True)
class Evidence:
    """`epoch`: the highest epoch in a file name of the node. `newer`: why the manifest is older
    than the files; "" if it is not."""

    epoch: int
    newer: str = ""


def of_files(
    files: Iterable[StoredFile], manifest: NodeManifest, there: Collection[tuple[int, int]]
) -> Evidence:
    """`files`: all files in a node's folder. `there`: (epoch, number) of its segments that are not
    archived."""
    highest, newer = 0, ""
    segments, late = set(), {}
    for file in files:
        name = layout.parse_wal_path(file.path)
        if name is not None and "/lost/" not in file.path:
            segments.add(name)
        epoch, archive = epoch_of(file.path), layout.parse_archive_path(file.path)
        highest = max(highest, epoch)
        # Only the permit of an epoch is created before its manifest is published.
        if epoch > manifest.epoch + (layout.parse_writer_path(file.path) is not None):
            newer = (
                newer or f"{file.path} is of epoch {epoch}, but the manifest is of {manifest.epoch}"
            )
        elif archive is not None and manifest.archived < archive.last[:2] not in there:
            late[file.path] = archive
    # The list is parsed only for an archive after the manifest's last archived position, which is
    # rare.
    for path in late.keys() - {archive.path for archive in manifest.archives} if late else ():
        surplus = f"{path} has entries up to {late[path].last} that the manifest does not know"
        newer = newer or f"{surplus}; their segments were removed"
    return Evidence(highest, newer or _another_beginning(manifest, segments))


def _another_beginning(manifest: NodeManifest, segments: Collection[tuple[int, int]]) -> str:
    """Why the manifest is of another history of this log with the same epochs, such as that of a
    copy that was opened. "" without evidence."""
    epoch, begins = manifest.begins
    if manifest.archived[1] >= begins:  # its first segments may be archived and removed
        return ""
    first = min((number for of_epoch, number in segments if of_epoch == epoch), default=0)
    if any(of_epoch < epoch and begins <= number < first for of_epoch, number in segments):
        return f"epoch {epoch} began with segment {first}, but the manifest says {begins}"
    return ""


def epoch_of(path: str) -> int:
    """The highest epoch in a file's name; 0 without one."""
    lost = layout.parse_lost_path(path)
    if lost is not None:
        return lost
    segment, archive = layout.parse_wal_path(path), layout.parse_archive_path(path)
    if segment is not None:
        return max(segment[0], layout.recovered_by(path))
    if archive is not None:
        return max(archive.epoch, archive.last.epoch)
    return layout.parse_writer_path(path) or 0
