"""How an operator takes the log from the Hazelcast cluster that has it: by a claim for a lifetime
that belongs to no cluster. The next cluster that starts follows it without waiting, neither for a
former cluster nor for nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from imap_wal.agent.membership.claims import begin, reserve
from imap_wal.agent.membership.liveness import present, signs
from imap_wal.layout import parse_sign_path
from imap_wal.manifest.cluster import ClaimManifest, ClusterManifest, claim_manifests
from imap_wal.read.cluster import ClusterLog
from storage_backends import NotFound


@dataclass(frozen=True, slots=True)
class ClaimReport:
    """`former`: id of the cluster that has or had the log, and its `incarnation`; "" and 0 if none
    ever did. `signs`: nodes whose agents hear its members, or did before they were killed.
    `present`: nodes whose agents run without such members, or did before they were killed, with the
    id of the cluster that their member is in ("": none was heard). `claimed`: the incarnation that
    was claimed; 0 after a dry run. `tokens`: how many tokens may claim the log. `closed`: after a
    repair, no cluster can claim it before an operator decides."""

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
    """Have the tokens with these hashes claim the log from now on; `keep`: also those of before.
    Without any, everybody may who may connect to an agent and claim. Claims that were closed are so
    no more. It changes nothing else."""
    claims = claim_manifests(
        log.store, log.folder, log.manifest().claims, log.clock, log.randomness
    )

    def changed(now: ClaimManifest) -> ClaimManifest:
        return replace(
            now, tokens=tuple(dict.fromkeys((*(now.tokens if keep else ()), *add))), closed=False
        )

    has_token = bool(changed(claims.read()[1]).tokens)

    def noted(manifest: ClusterManifest) -> ClusterManifest | None:
        return None if manifest.token == has_token else replace(manifest, token=has_token)

    # Says the cluster's manifest that there is a token, its claims have one: else they were lost.
    if not has_token:
        log.manifests.update(noted)
    claims.update(changed)
    if has_token:
        log.manifests.update(noted)


def take_log(log: ClusterLog, *, dry_run: bool) -> ClaimReport:
    """After this, only changes that are already in the log can be acknowledged for the former
    cluster."""
    claims = claim_manifests(
        log.store, log.folder, log.manifest().claims, log.clock, log.randomness
    )
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
        )  # else another claim came in between
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
