"""How an operator takes the log from the Hazelcast cluster that has it: by a claim for a lifetime that
belongs to no cluster. The next cluster that starts follows it without waiting."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from imap_wal.agent.claims import begin, reserve
from imap_wal.agent.liveness import signs
from imap_wal.layout import parse_alive_path
from imap_wal.manifest import ClaimManifest, claim_manifests
from imap_wal.restore import ClusterLog
from storage_backends import NotFound


@dataclass(frozen=True, slots=True)
class ClaimReport:
    """`former`: id of the cluster that has or had the log, and its `incarnation`; "" and 0 if none
    ever did. `signs`: nodes whose agents hear its members, or did before they were killed.
    `claimed`: the incarnation that was claimed; 0 after a dry run."""

    namespace: str
    cluster: str
    former: str
    incarnation: int
    signs: tuple[str, ...]
    claimed: int = 0


def take_log(log: ClusterLog, *, dry_run: bool) -> ClaimReport:
    """After this, only changes that are already in the log can be acknowledged for the former cluster."""
    claims = claim_manifests(log.store, log.folder, log.manifest().claims, log.clock, log.randomness)
    before = claims.read()[1]
    files = signs(log.store, log.folder)
    nodes = tuple(sorted({str(parse_alive_path(path)) for path in files}))
    claimed = 0
    while before.newest and not dry_run and not claimed:
        number = reserve(log)

        def change(now: ClaimManifest, number: int = number) -> ClaimManifest | None:
            return now.with_claim(f"imap-wal claim {number}", number) if now.newest < number else None

        newest = claims.update(change)
        claimed = number if newest.newest == number and begin(log, newest) else 0  # else another claim came in between
    if claimed:
        for path in files:
            with suppress(NotFound):
                log.store.delete(path)
    return ClaimReport(log.namespace, log.cluster, before.cluster_id, before.newest, nodes, claimed)
