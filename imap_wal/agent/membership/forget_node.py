"""Forgets a node that will not return: removes it from the cluster's manifest, so that restores no
longer need its log.

    fence the writer ─▶ node's manifest: forgotten ─▶ cluster's manifest: without the node
    ─▶ delete files ─▶ node's last manifest

Until this is complete, the node's log cannot be opened. Afterwards its folder has one small
manifest, from which a new log under this name continues with a higher epoch: a file that the former
writer still creates then does not count. On a storage that cannot append, the fence segments
(`layout.fences`) are kept too: without them, a former writer could acknowledge again.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from imap_wal import format, layout
from imap_wal.agent.membership.liveness import remove_signs
from imap_wal.context import Context
from imap_wal.disposal import discard, reachable
from imap_wal.errors import InvalidSetting, LogError, LostRace
from imap_wal.format import START, Position
from imap_wal.layout import Identity
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from imap_wal.manifest.older import epoch_of
from imap_wal.manifest.readers import HISTORY, forget_command, readers_of
from imap_wal.manifest.store import ManifestLog
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, FileScan
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import node_scans
from imap_wal.read.state import ClusterState
from imap_wal.segment.listing import wal_folder
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.object_segment import holds_nothing
from imap_wal.write.opening import open_node_log
from storage_backends import NotFound, SegmentStore

FORGOTTEN_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Loss:
    """The entries that are only in one node's log. `files`: where they are. `entries`: how many
    were counted. `whole`: whether all were counted; otherwise there may be more."""

    files: tuple[str, ...] = ()
    entries: int = 0
    whole: bool = True

    def __str__(self) -> str:
        if self.whole:
            return f"{self.entries:,}"
        return f"at least {self.entries:,}" if self.entries else "unknown"


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """The result of forgetting a node, or in a dry run the expected one. `missing`: why the node's
    log cannot be read. `lost`: the entries that are lost. `deleted`: the deleted files. `before`:
    an earlier run had already forgotten the node. `refused`: why it is not forgotten without
    `lose`."""

    node: str
    directory: str
    missing: str
    lost: Loss
    deleted: tuple[str, ...]
    dry_run: bool
    before: bool = False
    refused: str = ""


def forget_node(
    log: ClusterLog, node: str, *, lose: bool = False, dry_run: bool = False
) -> ForgetReport:
    """Remove a node from the cluster and delete its files. Its writer is fenced first, so that
    everything it acknowledged is known.

    Without `lose`, raises `InvalidSetting` if entries would be lost: those that no snapshot covers,
    or all entries of a log that cannot be read. A dry run reports this as `refused`. Raises
    `LostRace` if another process opens, archives or forgets the log meanwhile."""
    try:
        return _forget_node(log, node, lose=lose, dry_run=dry_run)
    except NotFound as error:
        raise LostRace(
            f"the log of node {node!r} changed while it was read ({error}); check "
            "that no process writes it any more, and run the command again"
        ) from error


def _forget_node(log: ClusterLog, node: str, *, lose: bool, dry_run: bool) -> ForgetReport:
    state = log.state()
    directory = state.manifest.nodes.get(node)
    manifests = NodeManifestLog(log.context, log.node_folder(node))
    left = manifests.read()[1]
    # Then an earlier run is incomplete, or files were added later.
    if directory is None and left.forgotten:
        return ForgetReport(
            node,
            left.directory,
            "",
            Loss(),
            _clear(log, node, manifests, left.directory, dry_run),
            dry_run,
            before=left.empty,
        )
    if directory is None:
        raise InvalidSetting(
            f"cluster {log.cluster!r} has no node {node!r}; it has "
            f"{', '.join(sorted(state.manifest.nodes)) or 'none'}"
        )
    missing = state.missing.get(node, "")
    lost = _loss_of_missing(log, state, node, left) if missing else _loss(log, state, node)
    end = _end(log, state, node, left)
    refused = "" if lose else _refusal(node, missing, lost) or _unread(log, node, end)
    if dry_run:
        deleted = _clear(log, node, manifests, directory, dry_run)
        return ForgetReport(node, directory, missing, lost, deleted, dry_run, refused=refused)
    if refused:
        raise InvalidSetting(refused)
    if left.address and not missing and not left.clean:
        raise InvalidSetting(
            f"the agent of node {node!r} is running, and only it can open the log on its disk; "
            "stop it first: a clean stop uploads what only that disk has"
        )
    with ExitStack() as stack:
        # Otherwise an earlier run is incomplete, or the segments are not here; then a writer, if
        # there is one, is refused when it next needs the manifest.
        if (missing or left.address) and left.directory == directory and not left.forgotten:
            if left.address:  # its disk is elsewhere: its writer is fenced by the permit alone
                folder = log.node_folder(node)
                log.store.delete(layout.writer_path(folder, left.epoch, left.permit))
            manifests.update(partial(_forgotten, epoch=left.epoch))
        elif not missing and not state.nodes[node].manifest.forgotten:
            held, lost = _taken_over(stack, log, node, directory)
            end = max(end, held.end)
            if not lose and (refused := _refusal(node, missing, lost) or _unread(log, node, end)):
                raise InvalidSetting(refused)
            held.manifests.update(partial(_forgotten, epoch=held.epoch))
        _unregister(log, node, directory, end)
        remove_signs(log.store, log.folder, node)
        files = _clear(log, node, manifests, directory)
    if log.store.capabilities.locks and left.directory in (
        "",
        directory,
    ):  # otherwise leases, which are kept: their numbers must not be used again
        log.store.delete(layout.lock_path(log.node_folder(node)))
    return ForgetReport(node, directory, missing, lost, files, dry_run)


def _taken_over(
    stack: ExitStack, log: ClusterLog, node: str, directory: str
) -> tuple[NodeLog, Loss]:
    """The log, with its writer fenced, and the entries that would be lost. They include everything
    that this writer acknowledged. Closing `stack` closes the log."""
    held = open_node_log(
        LogContext(
            log.context,
            Identity(log.namespace, log.cluster, node),
            Settings(),
        ),
        holder="imap-wal forget-node",
        takeover=True,
        directory=directory,
    )
    stack.callback(held.close, clean=False)
    state = log.state()
    if node not in state.nodes or state.manifest.nodes[node] != directory:
        raise _replaced(node)
    return held, _loss(log, state, node)


def _replaced(node: str) -> LostRace:
    return LostRace(
        f"node {node!r} was forgotten or replaced by another process at the same time; run "
        "the command again"
    )


def _forgotten(manifest: NodeManifest, *, epoch: int) -> NodeManifest:
    """The manifest of a forgotten log, which cannot be opened again. Raises `LostRace` if another
    process has opened the log, which the different epoch shows."""
    if manifest.epoch != epoch:
        raise LostRace(
            "another process opened this node's log; nothing was forgotten; check that no "
            "process writes it any more"
        )
    return replace(manifest, epoch=epoch + 1, forgotten=True)


def _refusal(node: str, missing: str, lost: Loss) -> str:
    """Why a node is not forgotten without `lose`; "" if nothing is lost."""
    if not missing and not lost.files:
        return ""
    more = f" and {len(lost.files) - 1} more files" if lost.files[1:] else ""
    number = "an unknown number of entries" if str(lost) == "unknown" else f"{lost} entries"
    where = f"{number} of {lost.files[0]}{more}, which no snapshot covers" if lost.files else number
    loss = f"{missing}, {where}" if missing else where
    way_out = "bring its log back" if missing else "run `imap-wal rewrite` first"
    return f"node {node!r} has entries that would be lost: {loss}; {way_out}, or pass --lose"


def _end(log: ClusterLog, state: ClusterState, node: str, left: NodeManifest) -> Position:
    """The last position of the node's log, as far as it is known."""
    if node in state.nodes:
        return log.end_of(state.nodes[node], state.nodes[node].manifest.checkpoint)
    archives = left.archives if left.directory == state.manifest.nodes[node] else ()
    return max([left.checkpoint, *(archive.last for archive in archives)])


def _unread(log: ClusterLog, node: str, end: Position) -> str:
    """Why a node is not forgotten: a registered reader has not read all of its changes; "" if all
    have."""
    unfinished = [
        name
        for name, reader in sorted(readers_of(log.store, log.folder).items())
        if name != HISTORY and not reader.has_read(node, end)
    ]
    if not unfinished:
        return ""
    names = ", ".join(map(repr, unfinished))
    one = len(unfinished) == 1
    have, they = (f"reader {names} has", "it") if one else (f"readers {names} have", "they")
    return (
        f"{have} not read the last changes of node {node!r}: let it read them; or run "
        f"`{forget_command(*unfinished)}` if {they} will not return; or pass --lose"
    )


@dataclass
class _Count:
    """Adds up a `Loss`."""

    context: Context
    files: list[str] = field(default_factory=list)
    entries: int = 0
    whole: bool = True

    def add(self, scan: FileScan) -> None:
        """Add the entries of a file that count and that no snapshot covers. A damaged file may have
        more than can be read."""
        count = 0
        try:
            if scan.kind == ARCHIVE and scan.first > scan.covered.get(scan.map, START):
                count = scan.records
            else:
                for changes in read_scan(self.context, scan):
                    count += len(changes.rows)
        except LogError:
            self.whole = False
            self.files.append(scan.path)
        else:
            self.files += [scan.path] if count else []
        self.entries += count

    @property
    def loss(self) -> Loss:
        return Loss(tuple(self.files), self.entries, self.whole)


def _loss(log: ClusterLog, state: ClusterState, node: str) -> Loss:
    """The entries that are only in this node's log."""
    count = _Count(log.context)
    for scan in node_scans(state, node):
        count.add(scan)
    return count.loss


def _loss_of_missing(log: ClusterLog, state: ClusterState, node: str, left: NodeManifest) -> Loss:
    """The same for an incomplete log. Some of its files may exist, even without a manifest: their
    readable entries are counted. The count is never complete."""
    count, directory = _Count(log.context), state.manifest.nodes[node]
    if left.directory != directory:
        left = NodeManifest(directory, archived=left.archived)
    covered = state.manifest.marks(node, left)
    segments = wal_folder(log.store, log.node_folder(node), left.archived).segments
    scans = [
        FileScan(
            ARCHIVE,
            node,
            archive.path,
            archive.map,
            directory,
            first=archive.first,
            last=archive.last,
            covered=covered,
            records=archive.records,
        )
        for archive in left.archives
    ]
    scans += [
        FileScan(
            SEGMENT,
            node,
            segment.path,
            "",
            directory,
            segment.epoch,
            segment.number,
            covered=covered,
        )
        for segment in segments
        if _log_of(log.store, segment.path) == directory
    ]
    for scan in scans:
        try:
            count.add(scan)
        except NotFound:
            continue
    return replace(count.loss, whole=False)


def _log_of(store: SegmentStore, path: str) -> str:
    """The log directory in a segment's header; "" if it cannot be read."""
    try:
        return format.decode_header(store.read(path), path)[0].directory
    except (NotFound, LogError):
        return ""


def _clear(
    log: ClusterLog,
    node: str,
    manifests: ManifestLog[NodeManifest],
    directory: str,
    dry_run: bool = False,
) -> tuple[str, ...]:
    """Delete what is left of a forgotten log, and publish its last manifest. If that exists
    already, delete files that were added later. Files of another log in this folder are kept, and
    so are files reached through a link, except manifests."""
    folder = log.node_folder(node)
    lock = layout.lock_path(folder)
    # Listed before the manifest is read: while that manifest is the forgotten log's, no other log
    # has files here.
    listed = [file for file in log.store.list(folder) if not file.path.startswith(lock)]
    number, manifest = manifests.read()
    if manifest.directory != directory and number:
        return ()
    remaining = {manifests.next_path(number - 1)} if manifest.empty and number else set()
    if not log.store.capabilities.durable_append:
        in_wal = [file for file in listed if file.path.startswith(f"{folder}/wal/")]
        remaining |= {
            path
            for path in sorted(layout.fences(in_wal, manifest.epoch + 1))
            if holds_nothing(log.store, path)
        }
    files = [file.path for file in listed if file.path not in remaining]
    former = [path for path in files if path.startswith(f"{folder}/manifest/")]
    others = [path for path in files if path not in former]
    if manifest.empty and number:  # a new log may be about to begin
        former = [path for path in former if path < manifests.next_path(number - 1)]
        others = [
            path
            for path in others
            if 0 < epoch_of(path) <= manifest.epoch or 0 < layout.list_number(path) <= number
        ]
    if dry_run:
        return (*reachable(log.store, others), *former)
    gone = discard(log.store, others)
    if number:
        manifests.update(partial(_ended, log), alone=True)
    for path in former:
        log.store.delete(path)
    return (*(path for path in others if path in gone), *former)


def _ended(log: ClusterLog, manifest: NodeManifest) -> NodeManifest | None:
    """The last manifest of a forgotten log. Lower epochs do not count any more."""
    if manifest.empty or not manifest.forgotten:
        return None  # another run has done this; there may be a new log
    number, cluster = log.manifests.read()
    last = max(manifest.newest, manifest.archived[1], manifest.checkpoint.segment)
    return NodeManifest(
        epoch=manifest.epoch,
        archived=(manifest.epoch, last),
        cluster=cluster.seen(number),
        forgotten=True,
    )


def _unregister(log: ClusterLog, node: str, directory: str, end: Position) -> None:
    def change(manifest: ClusterManifest) -> ClusterManifest:
        if manifest.nodes.get(node) != directory:
            raise _replaced(node)
        return replace(
            manifest.with_loss(node),
            nodes={
                name: log_directory
                for name, log_directory in manifest.nodes.items()
                if name != node
            },
            forgotten=dict([*manifest.forgotten.items(), (directory, end)][-FORGOTTEN_KEPT:]),
        )

    log.manifests.update(change)
    for file in log.store.list(layout.opened_folder(log.folder)):
        if (layout.parse_opened_path(file.path) or ("",))[0] == directory:
            log.store.delete(file.path)
