"""Checks that the snapshot files of a manifest are complete, and deletes files that are not needed.

A snapshot replaces the log below its marks. So before anything that it covers is removed, its files
are read and compared with the manifest (`demand_whole`).

Which snapshot files are deleted (`remove_former`), by one manifest:

    the manifest names it                               kept
    a reader needs it (`imap_wal.manifest.readers`)     kept
    generation at or below that of the map's snapshot   deleted: replaced, or never named
    generation below `orphan_floor`                     deleted: its rewrite cannot publish it
    anything else                                       kept: a rewrite may be running

A rewrite that died leaves files above the floor. Their age is only a hint that it is dead. So the
floor is first raised above their generation, by compare-and-swap. A rewrite that was only slow
finds the new floor in its own compare-and-swap, and publishes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from imap_wal.clock import storage_now
from imap_wal.contents import check_contents
from imap_wal.disposal import dispose, reachable, sweep
from imap_wal.errors import CorruptLog
from imap_wal.layout import snapshot_place
from imap_wal.manifest import readers
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.names import map_of
from imap_wal.read.cluster import ClusterLog
from storage_backends import NotFound, StoredFile

ORPHAN_MS = 24 * 3_600_000
"""A rewrite is treated as dead if the newest of its unpublished files is older than this, by the
storage's clock. If that is wrong, the rewrite loses its work, but no data is lost."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Snapshot files that no manifest names, of a rewrite that runs or was killed. `age_ms`: the
    age of the newest one, by this machine's clock; None: the storage has no modification times."""

    files: int
    bytes: int
    age_ms: int | None


_whole: WeakKeyDictionary[ClusterLog, dict[str, frozenset[str]]] = WeakKeyDictionary()
"""Map → files of its snapshot that were read through this ClusterLog and found complete. They never
change, so from then on only their existence and size are checked."""


def demand_whole(log: ClusterLog, manifest: ClusterManifest, maps: Iterable[str]) -> None:
    """Raises `CorruptLog` if a file of these maps' snapshots is missing or has changed. If a
    snapshot was replaced after `manifest` was read, the newer one is checked: it covers at least as
    much."""
    seen = _whole.setdefault(log, {})
    for name in sorted(set(maps)):
        snapshot = manifest.snapshots.get(name)
        while snapshot is not None:
            missing = _missing(log, snapshot, seen.get(name, frozenset()))
            if not missing:
                seen[name] = frozenset(snapshot.paths)
                break
            newer = log.manifest().snapshots.get(name)
            if newer is None or (newer.generation, newer.files) == (
                snapshot.generation,
                snapshot.files,
            ):
                raise CorruptLog(
                    missing,
                    0,
                    f"the manifest names this file of the snapshot of map {name!r}, but it "
                    "is missing",
                    "nothing that the snapshot covers was removed; bring the file back from a copy",
                )
            snapshot = newer


def _missing(log: ClusterLog, snapshot: Snapshot, checked: frozenset[str]) -> str:
    """The first missing file; "" if there is none. `checked`: files whose content was already
    checked."""
    for file in snapshot.files:
        try:
            checksum = 0 if file.path in checked else file.checksum
            check_contents(log.store, file.path, checksum, file.size)
        except NotFound:
            return file.path
    return ""


def remove_former(
    log: ClusterLog,
    *,
    dry_run: bool = False,
    check: bool = True,
    forgotten: Collection[str] = (),
    orphan_ms: int = ORPHAN_MS,
) -> tuple[StoredFile, ...]:
    """Delete the snapshot files that are not needed. Returns the deleted files. Any number of
    processes may do this at the same time. A dry run without `check` does not read the other
    snapshots. `forgotten`: readers that do not count. `orphan_ms`: in place of `ORPHAN_MS`. Raises
    `CorruptLog` if one of these snapshots is damaged."""
    # A killed rewrite leaves an unfinished file in the folder of its generation. No later rewrite
    # writes into that folder.
    unwritten = tuple(sweep(log.store, f"{log.folder}/snapshot", dry_run=dry_run))
    listed = {file.path: file for file in log.store.list(f"{log.folder}/snapshot")}
    files = [listed[path] for path in reachable(log.store, listed)]
    manifest = log.manifest()
    for_readers = readers.kept_files(log.store, log.folder, manifest, forgotten)
    dead = _dead(
        log, manifest, [file for file in files if file.path not in for_readers], orphan_ms, dry_run
    )
    if dead:
        raised = 1 + max(dead)

        def change(now: ClusterManifest) -> ClusterManifest:
            # The floor must not be above the generation of the next rewrite, so this raises the
            # generation too: any number may be in a file name.
            floor, generation = max(now.orphan_floor, raised), max(now.generation, raised - 1)
            return replace(now, orphan_floor=floor, generation=generation)

        manifest = change(manifest) if dry_run else log.manifests.update(change)
        for_readers = readers.kept_files(log.store, log.folder, manifest, forgotten)
    former = _Former(manifest)
    gone = tuple(file for file in files if file.path not in for_readers and former.has(file))
    if check or not dry_run:
        demand_whole(
            log,
            manifest,
            (
                name
                for file in gone
                if (name := map_of(snapshot_place(file.path)[0], manifest.snapshots))
            ),
        )
    if dry_run:
        return unwritten + gone
    deleted = dispose(log.store, [file.path for file in gone], f"{log.folder}/snapshot")
    return unwritten + tuple(file for file in gone if file.path in deleted)


def unfinished(
    log: ClusterLog, gone: Collection[str] = (), forgotten: Collection[str] = ()
) -> Unfinished | None:
    """What `remove_former` keeps because a rewrite may be running; None: nothing. `gone`: paths of
    files that do not count. `forgotten`: readers that do not count."""
    folder = f"{log.folder}/snapshot"
    files = [file for file in log.store.list(folder) if file.path not in gone]
    unwritten = [file for file in sweep(log.store, folder, dry_run=True) if file.path not in gone]
    manifest = log.manifest()
    for_readers = readers.kept_files(log.store, log.folder, manifest, forgotten)
    former = _Former(manifest)
    left = [
        file
        for file in files
        if file.path not in for_readers
        and former.is_undecided(file)
        and snapshot_place(file.path)[1]
    ] + unwritten
    if not left:
        return None
    newest_ms = max(file.modified_ms for file in left)
    age_ms = max(0, log.clock.now_ms() - newest_ms) if newest_ms else None
    return Unfinished(len(left), sum(file.size for file in left), age_ms)


class _Former:
    """Which files a manifest neither names nor may name again."""

    def __init__(self, manifest: ClusterManifest) -> None:
        self._manifest = manifest
        self.named = {path for snapshot in manifest.snapshots.values() for path in snapshot.paths}

    def has(self, file: StoredFile) -> bool:
        component, generation = snapshot_place(file.path)
        if not generation or file.path in self.named:
            return False
        snapshots = self._manifest.snapshots
        snapshot = snapshots.get(map_of(component, snapshots))
        replaced = snapshot is not None and generation <= snapshot.generation
        return replaced or generation < self._manifest.orphan_floor

    def is_undecided(self, file: StoredFile) -> bool:
        """Whether a rewrite may still publish the file."""
        return file.path not in self.named and not self.has(file)


def _dead(
    log: ClusterLog,
    manifest: ClusterManifest,
    files: Collection[StoredFile],
    orphan_ms: int,
    dry_run: bool,
) -> set[int]:
    """Generations above the floor that no manifest names, and without a new file for
    `orphan_ms`."""
    former = _Former(manifest)
    newest: dict[int, int] = {}
    for file in files:
        generation = snapshot_place(file.path)[1]
        if former.is_undecided(file) and generation:
            # On a storage without modification times, no rewrite is treated as dead.
            modified_ms = file.modified_ms or 2**62
            newest[generation] = max(newest.get(generation, 0), modified_ms)
    if not newest or min(newest.values()) == 2**62:
        return set()
    now_ms = (
        max(log.clock.now_ms(), *(file.modified_ms for file in files))
        if dry_run
        else storage_now(log.store, log.folder, log.randomness)
    )
    return {number for number, modified_ms in newest.items() if modified_ms <= now_ms - orphan_ms}
