"""The writers of the other nodes' logs: a claim for all logs shuts them out."""

from __future__ import annotations

from dataclasses import replace

from imap_wal.errors import LostRace, MissingNode
from imap_wal.manifest.node import node_manifests
from imap_wal.settings import RecoveryPolicy
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log


def shut_out_others(log: NodeLog, what: str, *, embedded: bool = False) -> list[str]:
    """Take over and close the log of every other node that is not closed. `embedded`: only logs
    that programs opened, not agents. Call it after a claim that a later open sees. Returns the
    names of those nodes. `what`: the new owner's name, for their writers. Raises the errors of
    `open_node_log`; `MissingNode` only if `recovery_policy` is full."""
    who, found = log.identity, []
    for node in sorted(log.clusters.read()[1].nodes):
        if node == who.node:
            continue
        other = replace(who, node=node)
        manifest = node_manifests(log.store, other.node_folder, log.clock, log.randomness).read()[1]
        # With stale listings there may be a newer manifest.
        if manifest.clean and not log.store.capabilities.stale_listings:
            continue
        if embedded and not manifest.embedded:
            continue
        try:
            opened = open_node_log(
                replace(log.context, identity=other),
                what=what,
                takeover=True,
                directory=manifest.directory,
            )
            opened.close()
        except LostRace:
            if (
                node_manifests(log.store, other.node_folder, log.clock, log.randomness)
                .read()[1]
                .directory
                == manifest.directory
            ):
                raise
            # It was forgotten. A log that replaced it was opened after the claim.
        except MissingNode:
            if log.settings.recovery_policy is RecoveryPolicy.FULL:
                raise
        else:
            found.append(node)
    return found
