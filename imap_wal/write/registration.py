"""Checks that a log is the one that the cluster's manifest names, and enters new logs there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from imap_wal import layout
from imap_wal.errors import MissingNode
from imap_wal.format import START
from imap_wal.manifest import older
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.epochs import Name, lost_from
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.older import (
    MISSING_ADVICE,
    NOT_OPENED,
    foreign_wal,
    older_manifest,
    unseen_text,
)
from imap_wal.manifest.store import ManifestLog
from imap_wal.segment.listing import WalFolder, wal_folder
from imap_wal.settings import RecoveryPolicy
from imap_wal.write.context import LogContext
from imap_wal.write.object_segment import holds_nothing
from storage_backends import AlreadyExists, StoredFile

_log = logging.getLogger("imap_wal")

SESSIONS_A_LOG = 2**20
"""More sessions than any log has."""
WITHOUT = "and open with recovery_policy='partial'"


class _LostDisk(NamedTuple):
    """`segments` of the log `before` were only on a lost disk. `what`: this as an error text."""

    before: NodeManifest
    segments: range
    what: str


def _nothing() -> None:
    """Nothing is given up."""


class Registration:
    """The place of a node's log in its cluster. The checks raise `MissingNode`."""

    def __init__(self, context: LogContext, clusters: ManifestLog[ClusterManifest]) -> None:
        self._context, self._clusters = context, clusters
        self._folder = context.identity.node_folder

    def check(self, cluster: ClusterManifest, directory: str) -> None:
        if directory and directory in cluster.forgotten:
            raise MissingNode(
                f"node {self._context.identity.node!r} was forgotten (imap-wal forget-node): "
                "restores no longer read its log; "
                f"move {self._folder} away to begin a new one under this name"
            )
        registered = cluster.nodes.get(self._context.identity.node)
        if (
            registered not in (None, directory)
            and self._context.settings.recovery_policy is RecoveryPolicy.FULL
        ):
            raise MissingNode(
                f"node {self._context.identity.node!r} is registered with log {registered}, but "
                f"{self._folder} has {directory or 'no manifest'}: "
                "its log was lost or replaced",
                MISSING_ADVICE,
            )

    def check_whose(self, cluster: ClusterManifest, before: NodeManifest) -> None:
        """Refuse any log but the registered one, whatever the recovery policy is: a policy can
        allow an open without a missing log, but not with another one. A log without archives, whose
        only segments are empty ones that fence a writer, comes from an open that ended before it
        registered the log."""
        registered, folder = cluster.nodes.get(self._context.identity.node), self._folder
        if not before.directory or registered == before.directory:
            return
        owner = next(
            (node for node, log_id in cluster.nodes.items() if log_id == before.directory), ""
        )
        if owner:
            reason = (
                f"{folder} has the log of node {owner!r} (log directory {before.directory}): "
                "this folder was copied or renamed"
            )
            raise MissingNode(
                reason,
                "move it away, or back to "
                f"{layout.node_folder(self._context.identity.cluster_folder, owner)}",
            )
        segments = wal_folder(self._context.store, folder).segments
        gone = before.newest > max((segment.number for segment in segments), default=0)
        if registered and (
            gone
            or before.archives
            or before.archived[1]
            or not all(holds_nothing(self._context.store, segment.path) for segment in segments)
        ):
            reason = (
                f"node {self._context.identity.node!r} is registered with log {registered}, but "
                f"{folder} has another one, {before.directory}"
            )
            raise MissingNode(
                reason,
                f"bring the right folder back; to continue without it, move {folder} away "
                f"first, {WITHOUT}",
            )

    def check_place(
        self, before: NodeManifest, wal: WalFolder, cluster: ClusterManifest
    ) -> tuple[NodeManifest, Callable[[], object]]:
        """The manifest, if the segments next to it are this log's. If not, and if the recovery
        policy allows it: the manifest of the same log without those segments. Its numbers continue
        after all known ones. Also a function that counts their loss, to be called before they are
        given up."""
        if before.lives_in(wal.logs):
            return before, _nothing
        if before.address and (not wal.logs or self._is_empty_disk()):
            return self._on_new_disk(before, wal, cluster)
        reason = (
            f"node {self._context.identity.node!r}: {foreign_wal(self._folder, before, wal.logs)}"
        )
        if wal.segments or wal.archived:
            raise MissingNode(
                reason,
                "bring the right folder back; to continue without it, move "
                f"{self._folder}/wal away first, {WITHOUT}",
            )
        if self._context.settings.recovery_policy is RecoveryPolicy.FULL:
            raise MissingNode(reason, MISSING_ADVICE)
        numbers = [mark.position.segment for mark in cluster.covered(self._context.identity.node)]
        number = max(
            [
                before.newest,
                before.checkpoint.segment,
                before.archived[1],
                *(segment.number for segment in wal.segments),
                *numbers,
            ]
        )

        def lose() -> None:
            _log.warning(
                "%s; this node continues without the entries that only those segments had", reason
            )
            self.count_loss()

        without = replace(
            _without_segments(before),
            clean=True,
            archived=(before.epoch, number),
            epochs=lost_from(before.epochs, before.archived[1] + 1),
        )
        return without, lose

    def count_loss(self) -> None:
        """Call this before a part of this log is given up: changes with a copy there then have one
        copy less."""
        node = self._context.identity.node
        self._clusters.update(lambda manifest: manifest.with_loss(node))

    def _is_empty_disk(self) -> bool:
        """Whether the node's own disk has no segment. It may have the id of a log that an open
        created there before it was interrupted."""
        own = self._context.own_disk
        if own is None or own.disk is None:
            return False
        files = own.disk.list(f"{self._folder}/wal")
        return not any(layout.parse_wal_path(file.path) for file in files)

    def _on_new_disk(
        self, before: NodeManifest, wal: WalFolder, cluster: ClusterManifest
    ) -> tuple[NodeManifest, Callable[[], object]]:
        """The manifest of a log whose segments are on a disk of its own, on a disk without them: it
        continues after what was uploaded. If that is not all, only if the recovery policy allows
        it, and the manifest says which segments are given up."""
        marks = cluster.covered(self._context.identity.node)
        newest = max([before.newest, *(mark.position.segment for mark in marks)])
        before = replace(before, newest=newest)
        unseen = before.unseen(wal)
        if not unseen:
            return replace(before, wal_id=""), _nothing
        reason = (
            f"node {self._context.identity.node!r}: its disk is new or another one: there is no "
            f"file {self._folder}/wal/{before.wal_id}.log; {unseen_text(before, wal)} were only on "
            "the former disk"
        )
        lost = _LostDisk(before, unseen, reason)
        self._demand_dispensable(lost, cluster)
        given_up = before.epoch, unseen[0], unseen[-1]
        without = replace(_without_segments(before), clean=False, given_up=given_up)
        return without, partial(self._give_up, lost)

    def _demand_dispensable(self, lost: _LostDisk, cluster: ClusterManifest) -> bool:
        """Whether other logs have each acknowledged change in these segments. If not, the recovery
        policy must allow their loss."""
        node = self._context.identity.node
        copied = cluster.acks_from(node, lost.before, lost.segments[0]) > 1
        if not copied and self._context.settings.recovery_policy is RecoveryPolicy.FULL:
            raise MissingNode(lost.what, MISSING_ADVICE)
        return copied

    def _give_up(self, lost: _LostDisk) -> None:
        """Count the loss of these segments."""
        copied = False

        def change(manifest: ClusterManifest) -> ClusterManifest:
            nonlocal copied
            copied = self._demand_dispensable(lost, manifest)
            return manifest.with_loss(self._context.identity.node)

        self._clusters.update(change)
        _log.warning(
            "%s; this node continues without them%s",
            lost.what,
            "; other logs have each acknowledged change in them" if copied else "",
        )

    def first_session(self, cluster: ClusterManifest, number: int) -> int:
        """Where the sessions of a new log begin. Order compares them with those of a former log of
        this node, which may be lost. So they begin above all that it can have used, derived from
        the number of the cluster's manifest, which grew when it was registered."""
        known_before = self._context.identity.node in cluster.nodes or cluster.forgotten
        return number * SESSIONS_A_LOG if known_before else 0

    def enter(self, opened: NodeManifest, epochs: Mapping[str, Name]) -> None:
        """Enter the log directory into the cluster's manifest, and its epoch in its own file next
        to that, so that many nodes can be opened at the same time. `epochs`: those recorded."""
        node, directory, cluster = (
            self._context.identity.node,
            opened.directory,
            self._context.identity.cluster_folder,
        )
        lost: str | None = None

        def change(manifest: ClusterManifest) -> ClusterManifest | None:
            nonlocal lost
            if manifest.nodes.get(node) == directory:
                return None
            self.check(manifest, directory)
            lost = manifest.nodes.get(node)
            entered = manifest.with_node(node, directory)
            return entered if lost is None else entered.with_loss(node)

        self._clusters.update(change)
        if lost is not None:
            text = (
                "node %r continues with a new log, %s, without the entries that only its missing "
                "log %s had"
            )
            _log.warning(text, node, directory, lost)
        present = opened.epoch, opened.epochs[-1].id
        with suppress(AlreadyExists):  # our own create, its answer was lost
            self._context.store.create(layout.opened_path(cluster, directory, *present), b"")
        former = epochs.get(directory, NOT_OPENED)
        if NOT_OPENED < former < present:
            self._context.store.delete(layout.opened_path(cluster, directory, *former))


def _without_segments(before: NodeManifest) -> NodeManifest:
    """The manifest without what may name entries in segments that are lost."""
    return replace(
        before.with_sessions_ended(),
        wal_id="",
        checkpoint=START,
        requests={},  # a request that is sent again is then not a repetition
    )


def demand_current(
    files: Iterable[StoredFile], folder: str, manifest: NodeManifest, wal: WalFolder
) -> None:
    """Raises `CorruptLog` if the files next to a node's manifest are newer than it: see
    `imap_wal.manifest.older`."""
    newer = older.of_files(files, manifest, {segment.name for segment in wal.segments}).newer
    if newer:
        raise older_manifest(f"{folder}/manifest", newer)
