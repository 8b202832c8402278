"""Lets an operator take the log from the Hazelcast cluster that has it, by a claim for a lifetime
that belongs to no cluster. The next cluster that starts follows it without waiting for a former
cluster or for nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from imap_wal.agent.membership.claims import begin, reserve
from imap_wal.agent.membership.liveness import present, signs
from imap_wal.layout import parse_sign_path
from imap_wal.manifest.claims import ClaimManifest, claim_manifests
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.read.cluster import ClusterLog
from storage_backends import NotFound


@dataclass(frozen=True, slots=True)
class ClaimReport:
    """`former`, `incarnation`: the id and incarnation of the cluster that has or had the log; ""
    and 0 if none ever had. `signs`: nodes whose agents hear its members, or did until they were
    killed. `claimed`: the incarnation that was claimed; 0 after a dry run. `present`: nodes whose
    agents run without such members, or did until they were killed → the id of their member's
    cluster ("": none was heard). `tokens`: how many tokens may claim the log. `closed`: after a
    repair, no cluster can claim the log until an operator decides."""

    namespace: str
    cluster: str
    former: str
    incarnation: int
    signs: tuple[str, ...]
    claimed: int = 0
    present: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0
    closed: bool = False


def set_tokens(log: ClusterLog, add: Sequence[str], *, keep: bool) -> None:
    """Set the tokens that may claim the log, by their hashes; `keep`: in addition to the existing
    ones. Without any token, every peer with the right to claim may claim the log. This also opens
    closed claims. It changes nothing else."""
    claims = claim_manifests(log.store, log.folder, log.clock, log.randomness)

    def changed(now: ClaimManifest) -> ClaimManifest:
        return replace(
            now, tokens=tuple(dict.fromkeys((*(now.tokens if keep else ()), *add))), closed=False
        )

    has_token = bool(changed(claims.read()[1]).tokens)

    def noted(manifest: ClusterManifest) -> ClusterManifest | None:
        return None if manifest.token == has_token else replace(manifest, token=has_token)

    # In this order: if the cluster's manifest says that there is a token, the claims must have one.
    # Otherwise the claims were lost.
    if not has_token:
        log.manifests.update(noted)
    claims.update(changed)
    if has_token:
        log.manifests.update(noted)


def take_log(log: ClusterLog, *, dry_run: bool) -> ClaimReport:
    """Claim the log for no cluster. After this, the former cluster gets an acknowledgement only for
    changes that are already in the log."""
    claims = claim_manifests(log.store, log.folder, log.clock, log.randomness)
    before = claims.read()[1]
    files = signs(log.store, log.folder)
    nodes = tuple(sorted({str(parse_sign_path(path)) for path in files}))
    others = present(log.store, log.folder)
    claimed = 0
    while before.newest and not dry_run and not claimed:
        number = reserve(log)

        def change(now: ClaimManifest, number: int = number) -> ClaimManifest | None:
            return (
                replace(now.with_claim(f"imap-wal claim {number}", number), forced=True)
                if now.newest < number
                else None
            )

        newest = claims.update(change)
        claimed = (
            number if newest.newest == number and begin(log, newest) else 0
        )  # otherwise another claim was published first
    if claimed:
        for path in files:
            with suppress(NotFound):
                log.store.delete(path)
    return ClaimReport(
        log.namespace,
        log.cluster,
        before.cluster_id,
        before.newest,
        nodes,
        claimed,
        others,
        len(before.tokens),
        before.closed,
    )
