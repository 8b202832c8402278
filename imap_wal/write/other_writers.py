"""The writers of the other nodes' logs: a claim for all logs shuts them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from imap_wal.errors import InvalidSetting, LostRace, MissingNode
from imap_wal.layout import Identity
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.manifest.node import LOG, NodeManifest, NodeManifestLog
from imap_wal.names import partition_count
from imap_wal.settings import RecoveryPolicy
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import NodeOpening

NOT_PROVED: Mapping[str, NodeOpening] = {}


def not_closed(context: LogContext) -> list[Identity]:
    """The other nodes whose logs are not closed: their writers may be alive."""
    return [other for other, _ in _not_closed(context, embedded=False)]


def prove_others(context: LogContext) -> dict[str, NodeOpening]:
    """Raise the error that would refuse `shut_out_others`, before the claim. Changes nothing.
    Returns the opening of each log that is not closed, to be passed to `shut_out_others`."""
    openings = {}
    for other, manifest in _not_closed(context, embedded=False):
        opening = _opening(context, other, manifest)
        try:
            opening.prove()
        except LostRace:
            continue  # it was forgotten or replaced meanwhile
        except MissingNode:
            if context.settings.recovery_policy is RecoveryPolicy.FULL:
                raise
        else:
            openings[other.node] = opening
    return openings


def shut_out_others(
    log: NodeLog,
    holder: str,
    *,
    embedded: bool = False,
    proved: Mapping[str, NodeOpening] = NOT_PROVED,
) -> list[str]:
    """Take over and close the log of every other node that is not closed. `embedded`: only logs
    that programs opened, not agents. `proved`: from `prove_others`. Call it after a claim that a
    later open sees. Returns the names of those nodes. `holder`: the new owner's name, for their
    writers. Raises the errors of `open_node_log`; `MissingNode` only if `recovery_policy` is
    full."""
    shut_out = []
    for other, manifest in _not_closed(log.context, embedded=embedded):
        opening = proved.get(other.node)
        if opening is None or opening.directory != manifest.directory:
            opening = _opening(log.context, other, manifest)
        try:
            opening.open(holder).close()
        except LostRace:
            if _newest(log.context, other).directory == manifest.directory:
                raise
            # It was forgotten. A log that replaced it was opened after the claim.
        except MissingNode:
            if log.settings.recovery_policy is RecoveryPolicy.FULL:
                raise
        else:
            shut_out.append(other.node)
    return shut_out


def _not_closed(context: LogContext, *, embedded: bool) -> Iterator[tuple[Identity, NodeManifest]]:
    who = context.identity
    clusters = ClusterManifestLog(context.context, who.cluster_folder)
    for node in sorted(clusters.read()[1].nodes):
        if node == who.node:
            continue
        other = replace(who, node=node)
        manifest = _newest(context, other)
        if manifest.kind == LOG and partition_count(node):
            raise InvalidSetting(
                f"cluster {who.cluster!r} in namespace {who.namespace!r} is a stream; maps there "
                "could remove its transactions: choose another cluster name"
            )
        # With stale listings there may be a newer manifest.
        if manifest.clean and not context.store.capabilities.stale_listings:
            continue
        if not embedded or manifest.embedded:
            yield other, manifest


def _newest(context: LogContext, who: Identity) -> NodeManifest:
    manifests = NodeManifestLog(context.context, who.node_folder)
    return manifests.read()[1]


def _opening(context: LogContext, other: Identity, manifest: NodeManifest) -> NodeOpening:
    return NodeOpening(
        replace(context, identity=other), takeover=True, directory=manifest.directory
    )
