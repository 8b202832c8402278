"""Entries that are added to a closed log in bulk: as the archives of a node without a writer.

    begin     claim an incarnation: the entries are newer than all that are there; an empty manifest
              of a node that is not registered
    (tasks)   write archives under names that no other task chooses; no manifest names them
    publish   the node's manifest, then the node in the cluster's manifest by compare-and-swap

Before the last step no reader sees an entry, and after it every reader sees all of them. If a
backfill does not reach it, its files remain, but no reader sees them; a prune or a later backfill
deletes them (`ended_backfills`). A store that opens claims an incarnation in the same manifest. So
it opens either before that step, and then nothing is published, or after it, and then it reads the
entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from imap_wal import layout
from imap_wal.clock import storage_now
from imap_wal.disposal import discard, sweep
from imap_wal.errors import (
    CorruptLog,
    InvalidSetting,
    LogError,
    LostRace,
    MissingNode,
    WriterLocked,
)
from imap_wal.format import START
from imap_wal.manifest import key_checks
from imap_wal.manifest.claims import claim_manifests
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.list_files import Archive, Listed
from imap_wal.manifest.node import NodeManifest, NodeManifestLog, Seen
from imap_wal.manifest.older import MISSING_ADVICE, current_cluster
from imap_wal.manifest.roots import demand_root
from imap_wal.names import decode
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.proof import prove_keys
from imap_wal.retention.snapshots import ORPHAN_MS
from storage_backends import NotFound, StoredFile

EPOCH = 1
SESSION = 1
"""Of the node: there is one writer, once."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill under way: its node, the UUID of its log directory, and its incarnation."""

    node: str
    directory: str
    incarnation: int

    def folder(self, log: ClusterLog) -> str:
        """The folder of its node."""
        return log.node_folder(self.node)


def demand_possible(log: ClusterLog) -> None:
    """Raise what refuses a backfill: `InvalidSetting` for a cluster of Hazelcast members,
    `WriterLocked` if a node's log is not closed, `MissingNode` if it is not there, and
    `EncryptionError` if the keys do not fit. Changes nothing."""
    current_cluster(log.context, log.folder, log.manifests)
    if not log.manifests.read()[0]:
        demand_root(log.store)
    _demand_closed(log, log.manifest())
    prove_keys(log)


def begin(log: ClusterLog) -> Backfill:
    """Claim an incarnation. Raises the errors of `demand_possible`."""
    demand_possible(log)
    for ended in list(ended_backfills(log)):
        if not ended.directory:
            remove_ended(log, ended)

    def claim(manifest: ClusterManifest) -> ClusterManifest:
        _demand_closed(log, manifest)
        number = manifest.incarnation + 1
        return replace(manifest, incarnation=number, embedded=number)

    key_checks.enter(log.context.keys.key_ring, log.manifests)
    claimed = log.manifests.update(claim)
    directory = str(UUID(bytes=log.randomness.token(), version=4))
    backfill = Backfill(
        f"{layout.BACKFILL}{directory}",
        directory,
        claimed.incarnation,
    )
    number, cluster = log.manifests.read()
    empty = NodeManifest(
        directory=directory,
        epoch=EPOCH,
        session=SESSION,
        begins=(EPOCH, 1),
        embedded=True,
        cluster=Seen(number, cluster.generation, cluster.incarnation),
    )
    NodeManifestLog(log.context, backfill.folder(log)).publish(0, empty)
    return backfill


def publish(log: ClusterLog, backfill: Backfill, archives: Sequence[Archive]) -> None:
    """Make the entries of these archives a part of the log, all at once. Raises `LostRace` if a
    program has opened the log since `begin`, and `CorruptLog` for a file that is missing or differs
    from what was written; then nothing becomes a part of the log."""
    for archive in archives:
        try:
            size = log.store.size(archive.path)
        except NotFound:
            size = -1
        if size != archive.bytes:
            difference = f"a task wrote {archive.bytes} bytes, but the storage has {max(size, 0)}"
            raise CorruptLog(
                archive.path, 0, difference, "nothing was published; repeat the backfill"
            )
    if not archives:
        return

    def enter(now: ClusterManifest) -> ClusterManifest:
        _demand_closed(log, now)
        if now.incarnation != backfill.incarnation:
            raise LostRace(
                f"a program has opened {log.namespace}/{log.cluster} since this backfill began, "
                "and would not see its entries: nothing was published; close it, and repeat the "
                "backfill"
            )
        return replace(now, nodes={**now.nodes, backfill.node: backfill.directory})

    enter(log.manifests.read()[1])  # first: a refusal is likely to be noticed here
    nodes = NodeManifestLog(log.context, backfill.folder(log))
    last = max(archive.last for archive in archives)

    def name(manifest: NodeManifest) -> NodeManifest:
        if manifest.archives or manifest.directory != backfill.directory:
            raise LostRace(f"{backfill.folder(log)}: this backfill is already published or removed")
        ordered = sorted(archives, key=lambda archive: (archive.first, archive.map))
        return replace(
            manifest.with_archives(ordered),
            checkpoint=last,
            archived=last[:2],
            newest=last.segment,
        )

    nodes.update(name)
    try:
        log.manifests.update(enter)
    except (LostRace, WriterLocked, InvalidSetting):
        nodes.update(lambda manifest: replace(manifest, archives=Listed()))
        raise


def abandon(log: ClusterLog, backfill: Backfill) -> None:
    """Remove what a backfill has written that will not be published."""
    files = tuple(log.store.list(backfill.folder(log)))
    remove_ended(log, EndedBackfill(backfill.node, backfill.incarnation, files))


def _demand_closed(log: ClusterLog, manifest: ClusterManifest) -> None:
    claims = claim_manifests(log.context, log.folder)
    if claims.read()[1].newest:
        raise InvalidSetting(
            f"cluster {log.cluster!r} in namespace {log.namespace!r} belongs to Hazelcast members: "
            "put the entries into its maps through a client"
        )
    for node in sorted(manifest.nodes):
        folder = layout.node_folder(log.folder, node)
        number, node_manifest = NodeManifestLog(log.context, folder).read()
        if not number:
            raise MissingNode(f"node {node!r}: there is no log in {folder}", MISSING_ADVICE)
        if not node_manifest.clean:
            raise WriterLocked(
                node, "a program that has it open, or that has ended without closing it"
            )
        if node_manifest.kind:
            raise InvalidSetting(
                f"node {node!r} of cluster {log.cluster!r} is a log without maps: append to it "
                "with imap_wal.log"
            )


# Removes the nodes of backfills that have ended.
#
#   unfinished  not registered, and without a new file for a day. First the cluster's incarnation is
#               made higher than that of the backfill, so that it can no longer be registered
#   covered     registered, and a prune has removed its last archive: its entries are in snapshots.
#               It has no writer, so the node is no longer needed
#
# The names of these nodes are never used again, so all of their files are removed.


@dataclass(frozen=True, slots=True)
class EndedBackfill:
    """The node of a backfill that has ended, its incarnation (0: not needed), and its files.
    `directory`: the log directory under which it is registered; "": it is unfinished."""

    node: str
    incarnation: int
    files: tuple[StoredFile, ...]
    directory: str = ""


def ended_backfills(log: ClusterLog, *, dry_run: bool = False) -> Iterator[EndedBackfill]:
    """The backfills that have ended. It changes nothing; but without `dry_run`, the time is that of
    the storage, for which a file is created for a moment. On a storage without modification times,
    no backfill counts as unfinished. A node whose manifest is damaged is left out."""
    now_ms = 0
    registered = log.manifest().nodes
    for component in log.store.folders(f"{log.folder}/nodes"):
        node = decode(component)
        if not layout.is_backfill(node):
            continue
        with suppress(LogError):
            manifest, files = _of(log, node)
            if node in registered:
                if manifest.removed > START and not manifest.archives:
                    yield EndedBackfill(node, 0, files, registered[node])
                continue
            if not files or not all(file.modified_ms for file in files):
                continue
            now_ms = now_ms or (
                log.clock.now_ms()
                if dry_run
                else storage_now(log.store, log.folder, log.randomness)
            )
            if now_ms - max(file.modified_ms for file in files) > ORPHAN_MS:
                yield EndedBackfill(node, manifest.cluster.incarnation, files)


def remove_ended(log: ClusterLog, backfill: EndedBackfill) -> set[str]:
    """Remove the node and its files. Returns the deleted paths: none if the node was registered or
    removed meanwhile."""
    node, is_ours = backfill.node, True

    def change(manifest: ClusterManifest) -> ClusterManifest | None:
        nonlocal is_ours
        is_ours = manifest.nodes.get(node, "") == backfill.directory
        if not is_ours:
            return None
        others = {name: directory for name, directory in manifest.nodes.items() if name != node}
        ended = max(manifest.incarnation, backfill.incarnation + 1)
        return replace(manifest, nodes=others, incarnation=ended)

    log.manifests.update(change)
    if not is_ours:
        return set()
    folder = log.node_folder(node)
    # The manifest last: it shows what a removal that was interrupted has left.
    paths = sorted(
        (file.path for file in backfill.files),
        key=lambda path: path.startswith(f"{folder}/manifest/"),
    )
    gone = discard(log.store, paths)
    sweep(log.store, folder)
    return gone


def _of(log: ClusterLog, node: str) -> tuple[NodeManifest, tuple[StoredFile, ...]]:
    folder = log.node_folder(node)
    files = tuple(log.store.list(folder))
    return NodeManifestLog(log.context, folder).read()[1], files
