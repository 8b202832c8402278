"""Entries that are added to a closed log in bulk: as the archives of a node without a writer.

    begin     claim an incarnation: the entries are newer than all that are there; an empty manifest
              of a node that is not registered
    (tasks)   write archives under names that no other task chooses; no manifest names them
    publish   the node's manifest, then the node in the cluster's manifest by compare-and-swap

Before the last step no reader sees an entry, and after it every reader sees all of them. If a
backfill does not reach it, its files remain, but no reader sees them; a prune or a later backfill
deletes them (`imap_wal.retention.ended_backfills`). A store that opens claims an incarnation in the
same manifest. So it opens either before that step, and then nothing is published, or after it, and
then it reads the entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from imap_wal import layout
from imap_wal.errors import CorruptLog, InvalidSetting, LostRace, WriterLocked
from imap_wal.manifest import key_checks
from imap_wal.manifest.archives import Archive
from imap_wal.manifest.claims import claim_manifests
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.node import NodeManifest, Seen, node_manifests
from imap_wal.manifest.older import current_cluster
from imap_wal.manifest.roots import demand_root
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.proof import prove_keys
from imap_wal.retention.ended_backfills import EndedBackfill, ended_backfills, remove_ended
from storage_backends import NotFound

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


def begin(log: ClusterLog) -> Backfill:
    """Claim an incarnation. Raises `InvalidSetting` for a cluster of Hazelcast members,
    `WriterLocked` if a node's log is not closed, and `EncryptionError` if the keys do not fit."""
    current_cluster(log.store, log.folder, log.manifests, log.clock, log.randomness)

    if not log.manifests.read()[0]:
        demand_root(log.store)
    for ended in list(ended_backfills(log)):
        if not ended.directory:
            remove_ended(log, ended)

    def claim(manifest: ClusterManifest) -> ClusterManifest:
        _demand_closed(log, manifest)
        number = manifest.incarnation + 1
        return replace(manifest, incarnation=number, embedded=number)

    _demand_closed(log, log.manifest())
    prove_keys(log)
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
    node_manifests(log.store, backfill.folder(log), log.clock, log.randomness).publish(0, empty)
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
    nodes = node_manifests(log.store, backfill.folder(log), log.clock, log.randomness)
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
    claims = claim_manifests(log.store, log.folder, log.clock, log.randomness)
    if claims.read()[1].newest:
        raise InvalidSetting(
            f"cluster {log.cluster!r} in namespace {log.namespace!r} belongs to Hazelcast members: "
            "put the entries into its maps through a client"
        )
    for node in sorted(manifest.nodes):
        node_manifest = node_manifests(
            log.store, layout.node_folder(log.folder, node), log.clock, log.randomness
        ).read()[1]
        if not node_manifest.clean:
            raise WriterLocked(
                node, "a program that has it open, or that has ended without closing it"
            )
        if node_manifest.kind:
            raise InvalidSetting(
                f"node {node!r} of cluster {log.cluster!r} is a log without maps: append to it "
                "with imap_wal.log"
            )
