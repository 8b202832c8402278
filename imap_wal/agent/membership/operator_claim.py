"""Lets an operator take the log from the Hazelcast cluster that has it, by a claim for a lifetime
that belongs to no cluster. The next cluster that starts follows it without waiting for a former
cluster or for nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from imap_wal.agent.membership.claims import begin, reserve
from imap_wal.agent.membership.clocks import OLD_MS, newest_signs
from imap_wal.agent.membership.liveness import present, signs
from imap_wal.agent.membership.start import Belonging
from imap_wal.inspect.running_writer import writer_of
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
    repair, no cluster can claim the log until an operator decides. `missing`: nodes for which a new
    cluster waits, because their agents have given no sign for some minutes, or whose logs are not
    here → the Unix time of the last sign or, without one, of the last change of the node's
    manifest; 0: neither is here."""

    namespace: str
    cluster: str
    former: str
    incarnation: int
    signs: tuple[str, ...]
    claimed: int = 0
    present: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0
    closed: bool = False
    missing: Mapping[str, int] = field(default_factory=dict)


def set_tokens(log: ClusterLog, add: Sequence[str], *, keep: bool) -> None:
    """Set the tokens that may claim the log, by their hashes; `keep`: in addition to the existing
    ones. Without any token, every peer with the right to claim may claim the log. This also opens
    closed claims. It changes nothing else."""
    claims = claim_manifests(log.context, log.folder)

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
    claims = claim_manifests(log.context, log.folder)
    before = claims.read()[1]
    files = signs(log.store, log.folder)
    nodes = tuple(sorted({str(parse_sign_path(path)) for path in files}))
    others, missing = present(log.store, log.folder), _missing(log)
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
        missing,
    )


def _missing(log: ClusterLog) -> dict[str, int]:
    """`ClaimReport.missing`."""
    now_ms = log.clock.now_ms()
    # A storage without modification times shows only that there is a sign.
    newest = newest_signs(log.store, log.folder)
    seen = {node: file.modified_ms or now_ms for node, file in newest.items()}
    belonging, missing = Belonging(log)(), {}
    for node in log.manifests.read()[1].nodes:
        if now_ms - seen.get(node, 0) > OLD_MS and not _is_written(log, node):
            changed_ms = _changed_ms(log, node)
            if node in belonging or not changed_ms:  # without its log, no map can be loaded
                missing[node] = seen.get(node) or changed_ms
    return missing


def _is_written(log: ClusterLog, node: str) -> bool:
    """Whether a process writes the node's log, such as an agent that gives no signs."""
    folder = log.node_folder(node)
    return log.store.capabilities.locks and bool(writer_of(log.store, folder, "imap-wal claim"))


def _changed_ms(log: ClusterLog, node: str) -> int:
    """When the node's manifest was last changed; 0: it has none, or the storage has no times."""
    files = log.store.list(f"{log.node_folder(node)}/manifest")
    return max((file.modified_ms or 1 for file in files), default=0)
