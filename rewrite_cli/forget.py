"""Forgetting a node that is gone for good: its name is removed from the cluster's manifest, and
restores no longer read its log."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from imap_wal.errors import InvalidSetting, LostRace
from imap_wal.layout import Identity
from imap_wal.manifest import ClusterManifest, NodeManifest, node_manifests
from imap_wal.pieces import SEGMENT, read_piece
from imap_wal.removal import plan_covered
from imap_wal.restore import ClusterLog, ClusterState
from imap_wal.settings import Settings
from imap_wal.writer import open_node_log
from storage_backends import NotFound

FORGOTTEN_KEPT = 1000


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """What was, or would be, forgotten. `missing`: why the node's log cannot be read;
    `uncovered_files`: those that no snapshot covers whole, whose entries are lost with it;
    `deleted`: files of the node that were removed."""

    node: str
    log_id: str
    missing: str
    uncovered_files: tuple[str, ...]
    deleted: tuple[str, ...]
    dry_run: bool


def forget_node(log: ClusterLog, node: str, *, lose: bool = False, dry_run: bool = False) -> ForgetReport:
    """Take a node out of the cluster and delete its files. Its writer is shut out first, so that
    all it acknowledged is known. Without `lose`, `InvalidSetting` where entries would be lost:
    those that no snapshot covers, or all of a log that cannot be read."""
    state = log.state()
    log_id = state.manifest.nodes.get(node)
    left = node_manifests(log.store, log.node_folder(node), log.clock, log.randomness).read()[1]
    if log_id is None and left.forgotten:  # an earlier run did not end
        return ForgetReport(node, left.directory, "", (), _files(log, node) if dry_run else _delete(log, node), dry_run)
    if log_id is None:
        raise InvalidSetting(f"cluster {log.cluster!r} has no node {node!r}; it has {', '.join(sorted(state.manifest.nodes)) or 'none'}")
    missing = state.missing.get(node, "")
    uncovered = () if missing else _uncovered(log, state, node)
    if dry_run:
        return ForgetReport(node, log_id, missing, uncovered, _files(log, node), dry_run)
    if not lose:
        _demand_nothing_lost(node, missing, uncovered)
    with ExitStack() as stack:
        # Else its segments are not here, and its writer, if there is one, is refused by its next
        # open; or an earlier run did not end.
        if not missing and not state.nodes[node].manifest.forgotten:
            identity = Identity(log.namespace, log.cluster, node)
            held = open_node_log(log.store, identity, Settings(), log.clock, log.randomness, what="imap-wal forget-node", takeover=True)
            stack.callback(held.close, clean=False)
            uncovered = _uncovered(log, log.state(), node)  # with what its writer acknowledged before it was shut out
            if not lose:
                _demand_nothing_lost(node, missing, uncovered)
            held.manifests.update(partial(_forgotten, epoch=held.epoch))
        _unregister(log, node, log_id)
        files = _delete(log, node)
    if log.store.capabilities.locks:  # else leases, which are kept: a number must not become free again
        log.store.delete(f"{log.node_folder(node)}/writer.lock")
    return ForgetReport(node, log_id, missing, uncovered, files, dry_run)


def _forgotten(manifest: NodeManifest, *, epoch: int) -> NodeManifest:
    """After this, the log cannot be opened again. An open that came before has another epoch; then
    this raises, and what it appended is kept."""
    if manifest.epoch != epoch:
        raise LostRace("another process opened this node's log; nothing was forgotten; check whether the node is really gone")
    return replace(manifest, epoch=epoch + 1, forgotten=True)


def _demand_nothing_lost(node: str, missing: str, uncovered: tuple[str, ...]) -> None:
    if missing or uncovered:
        what = missing or f"no snapshot covers all of {uncovered[0]}" + (f" and of {len(uncovered) - 1} more files" if uncovered[1:] else "")
        raise InvalidSetting(f"node {node!r} holds entries that would be lost: {what}; run `imap-wal rewrite` first, or pass --lose")


def _uncovered(log: ClusterLog, state: ClusterState, node: str) -> tuple[str, ...]:
    """Files of the node that hold an entry which no snapshot covers."""
    found = state.nodes[node]
    removal = plan_covered(log.store, found, state.covered(node), writing=2**62)
    gone = {archive.path for archive in removal.archives} | {segment.path for segment in removal.segments}
    archives = [archive.path for archive in found.manifest.archives if archive.path not in gone]
    segments = [piece for piece in log.node_pieces(state, node) if piece.kind == SEGMENT and piece.path not in gone]
    try:
        return (*archives, *(piece.path for piece in segments if any(changes.rows for changes in read_piece(log.store, piece))))
    except NotFound as error:
        raise LostRace(f"the log of node {node!r} changed while it was looked at ({error}); check whether the node is really gone") from error


def _delete(log: ClusterLog, node: str) -> tuple[str, ...]:
    files = _files(log, node)
    newest = max((path for path in files if "/manifest/" in path), default="")
    for path in sorted(
        files, key=lambda path: (path == newest, "/manifest/" in path)
    ):  # the newest manifest last: it records that all of this may be deleted
        log.store.delete(path)
    return files


def _files(log: ClusterLog, node: str) -> tuple[str, ...]:
    lock = f"{log.node_folder(node)}/writer.lock"
    return tuple(file.path for file in log.store.list(log.node_folder(node)) if not file.path.startswith(lock))


def _unregister(log: ClusterLog, node: str, log_id: str) -> None:
    def change(manifest: ClusterManifest) -> ClusterManifest:
        if manifest.nodes.get(node) != log_id:
            raise LostRace(f"node {node!r} was forgotten or replaced by another process at the same time; run the command again")
        return replace(
            manifest,
            nodes={name: known for name, known in manifest.nodes.items() if name != node},
            forgotten=(*manifest.forgotten, log_id)[-FORGOTTEN_KEPT:],
        )

    log.manifests.update(change)
