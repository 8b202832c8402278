"""What is not removed because a reader outside of the cluster may still need it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from imap_wal import layout
from imap_wal.format import START, Position
from imap_wal.manifest.reader_manifest import ReaderManifest
from imap_wal.manifest.readers import ATTEMPTS, HISTORY, forget_command, readers_of
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from storage_backends import NotFound

DAY_MS = 86_400_000
STALE_MS = 7 * DAY_MS
"""A reader may be gone if it has published nothing for this long, and files are kept for it."""


@dataclass(frozen=True, slots=True)
class KeptFor:
    """What is kept for one reader although snapshots cover it. What several readers need counts for
    each of them. `positions`: how far it has read. `log_bytes`: an estimate, because it is not
    known where in a segment a snapshot ends. `idle_ms`: the time since it published something.
    `begins_ms`: of the history, the Unix time from which each moment can be read; 0: all moments of
    the log. None: another reader."""

    reader: str
    positions: Mapping[str, Position]
    log_bytes: int
    snapshot_files: int
    snapshot_bytes: int
    idle_ms: int
    begins_ms: int | None = None
    files_only: bool = False
    """It is a published table: it needs files of snapshots, and no log."""

    @property
    def bytes(self) -> int:
        return self.log_bytes + self.snapshot_bytes

    @property
    def is_stale(self) -> bool:
        """Whether it may be gone although files are kept for it."""
        return self.bytes > 0 and self.idle_ms >= STALE_MS

    @property
    def advice(self) -> str:
        """What to do about a stale reader."""
        days, command = self.idle_ms // DAY_MS, forget_command(self.reader)
        if self.begins_ms is not None:
            return (
                f"the history has not advanced for {days} days, and files are kept for it: if it "
                f"is not wanted any more, run `{command}`; otherwise, a compaction or `imap-wal "
                "prune --history` advances it"
            )
        if self.files_only:
            return (
                f"the table of reader {self.reader!r} was not published for {days} days, and files "
                "are kept for it: run `imap-wal publish` again; only if nothing reads the table "
                "any more, delete it (of Delta, the folders _delta_log and published), and run "
                f"`{command}`"
            )
        return (
            f"reader {self.reader!r} has published nothing for {days} days, and files are kept "
            f"for it: if its query is gone, run `{command}`"
        )


def kept_for_readers(
    log: ClusterLog, forgotten: Collection[str] = (), attempts: int = ATTEMPTS
) -> tuple[KeptFor, ...]:
    """For every registered reader except those of `forgotten`, by name. Reads manifests and
    listings only. Raises the errors of `ClusterLog.state`, and `NotFound` if readers published at
    each of the attempts."""
    if not log.store.folders(layout.readers_folder(log.folder)):
        return ()
    state = log.state()
    try:
        return tuple(
            _kept_for(log, state, name, reader)
            for name, reader in sorted(readers_of(log.store, log.folder, forgotten).items())
        )
    except NotFound:  # a reader published or was forgotten meanwhile, so its lists are deleted
        if not attempts:
            raise
    return kept_for_readers(log, forgotten, attempts - 1)


def _kept_for(log: ClusterLog, state: ClusterState, name: str, reader: ReaderManifest) -> KeptFor:
    named = {path for snapshot in state.manifest.snapshots.values() for path in snapshot.paths}
    former = {path: size for path, size in reader.kept_files(state.manifest) if path not in named}
    return KeptFor(
        name,
        reader.positions,
        sum(_covered_above(state, node, reader.kept_above(node)) for node in state.nodes),
        len(former),
        sum(former.values()),
        max(0, log.clock.now_ms() - reader.updated_ms),
        reader.base.until_ms if name == HISTORY and reader.base is not None else None,
        reader.files_only,
    )


def _covered_above(state: ClusterState, name: str, kept_position: Position) -> int:
    """Bytes of the archives and segments of a node that snapshots cover, and that have entries
    above `kept_position`."""
    node, covered = state.nodes[name], state.covered(name)
    archives = sum(
        archive.bytes
        for archive in node.manifest.archives
        if kept_position < archive.last <= covered.get(archive.map, START)
    )
    lowest = min(covered.values(), default=START)
    segments = sum(
        segment.bytes for segment in node.segments if kept_position[:2] <= segment.name < lowest[:2]
    )
    return archives + segments
