"""Which Hazelcast cluster and which of its members may write: claims and views.

    hello of an unknown cluster id   the next incarnation, with an open list of members
    a request for a view             the next incarnation of the same cluster id, with a closed list

Both use the same steps: permit ─▶ claim (compare-and-swap) ─▶ delete older permits ─▶ record the
cutoffs ─▶ publish the lifetime. If the process ends before the last step, the next hello completes
the claim. See decision 4 in docs/decisions/histories.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import NamedTuple

import structlog

from imap_wal import layout, tracing
from imap_wal.agent.access.keys import token_hash
from imap_wal.agent.access.peers import LOCAL, Peer, Right
from imap_wal.agent.membership.start import Start
from imap_wal.errors import ImapWalError, NotAllowed
from imap_wal.format import END, Position
from imap_wal.manifest.claims import CLOSED_ADVICE, ClaimManifest
from imap_wal.manifest.cluster import ClusterManifest, IncarnationRecord
from imap_wal.manifest.older import current_cluster, older_manifest
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.write.node_log import NodeLog
from imap_wal.write.other_writers import shut_out_others
from storage_backends import AlreadyExists, NotFound

READ_AGAIN_S = 1.0
"""Claims without a permit are read again after this time, even if the file with the next number
does not exist: it may have been created and deleted."""

PERMITS_BY_NAME = 64
"""A claim deletes the permits of this many earlier incarnations by name, because a listing may be
outdated and not show them."""


_log = structlog.get_logger("imap_wal.agent")


class VoidIncarnation(ImapWalError):
    """Another cluster has claimed the log since, or the member is not in the newest view."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """A member, from its hello. `view`: the incarnation of its cluster, as far as the member knows;
    0: not known. `token`: the cluster's. `peer`: the sender."""

    cluster_id: str
    member: str
    plugin: str
    view: int = 0
    token: str = field(default="", repr=False)
    peer: Peer = LOCAL


@dataclass(frozen=True, slots=True)
class ClaimedView:
    """An incarnation and its members. `members` (): any member of the cluster may join."""

    incarnation: int
    members: tuple[str, ...]


class Claims:
    """Reads and makes the claims of one cluster, for one agent. Used by the serving thread."""

    def __init__(self, log: NodeLog, cluster: ClusterLog, start: Start) -> None:
        self._log, self._cluster, self._start = log, cluster, start
        self._folder = log.identity.cluster_folder
        begun = max(
            (lifetime.incarnation for lifetime in log.clusters.read()[1].lifetimes), default=0
        )
        self._number, self._known = log.claims.read()
        if begun > self._known.newest:
            raise older_manifest(
                log.claims.folder,
                f"incarnation {begun} has begun, but the last claim is {self._known.newest}",
            )
        # A token is entered into the claims before the cluster's manifest says that there is one,
        # and is removed from them after the manifest no longer says so. So the token is lost only
        # if the claims have none before and after that manifest is read.
        if (
            not self._known.names_token
            and log.clusters.read()[1].token
            and not log.claims.read()[1].names_token
        ):
            raise older_manifest(
                log.claims.folder, "this cluster has a token, but its claims have none"
            )
        self._read_at = log.clock.monotonic()

    @property
    def known(self) -> ClaimManifest:
        """The claims as they were last read."""
        return self._known

    def newest(self) -> int:
        """The incarnation that may write; 0 if the permit of the newest known one was deleted. This
        costs one stat on a local file system."""
        store, claims, before = self._log.store, self._log.claims, self._known.newest
        if before:
            if self._permit_is_there(before):
                return before
            self._number, self._known = claims.read()
            # The listing may be outdated and not show the newer claim.
            return self._known.newest if self._known.newest != before else 0
        now = self._log.clock.monotonic()
        if now - self._read_at >= READ_AGAIN_S or store.exists(claims.next_path(self._number)):
            self._read_at = now
            self._number, self._known = claims.read()
        return self._known.newest

    def may_count(self, who: Greeting) -> bool:
        """Whether a starting cluster must consider this member: it belongs to the newest cluster,
        or may claim the log, by the claims as last read. An unauthorised peer must not delay a
        start."""
        return who.cluster_id == self._known.cluster_id or _lacks(self._known, who) == ""

    def enter(self, who: Greeting, is_new: bool, look: int = 0) -> int:
        """The incarnation in which a member that says hello may write. Claims one for a cluster id
        that has none. `is_new`: this plug-in was never in an incarnation here. `look`: see
        `Start.demand`. Raises `VoidIncarnation`, `NotAllowed`, and `start.Waits` or
        `start.NotLooked` if the cluster must wait."""
        tried = False

        def admitted(claims: ClaimManifest) -> ClaimManifest | None:
            check_token(claims, who)
            claimed = claims.claims.get(who.cluster_id)
            if claimed is None:
                demand_authority(claims, who)
                self._start.demand(who.cluster_id, claims, look, nodes=True)
                return None
            if claimed == claims.newest:
                _demand_admitted(claims, who)
                return claims.with_member(who.member)
            if self._returns(claims, claimed, who, is_new and not tried):
                demand_authority(claims, who)
                self._start.demand(who.cluster_id, claims, look, nodes=False)
            return None

        def new_claim(claims: ClaimManifest, incarnation: int) -> ClaimManifest:
            nonlocal tried
            tried = True  # if another cluster claims after this, do not claim again
            if who.token and not claims.tokens:
                claims = replace(claims, tokens=(token_hash(who.token),))
            claimed = claims.claims.get(who.cluster_id)
            if claimed == claims.newest:  # the log is a copy, or a program has a higher incarnation
                return claims.with_claim(who.cluster_id, incarnation, claims.members, claims.lost)
            # Members of the older incarnation may have changes that are not in the log.
            return claims.with_claim(
                who.cluster_id, incarnation, () if claimed is None else (who.member,)
            )

        incarnation = self._claim(who, admitted, new_claim).newest
        if tried:
            self._start.ended()
        return incarnation

    def of_reader(self, who: Greeting) -> int:
        """The newest incarnation, for a client of its cluster that only reads. Changes nothing, and
        does not complete an unfinished claim. Raises `NotAllowed` and `VoidIncarnation`."""
        self.newest()
        claims = self._known
        check_token(claims, who)
        claimed = claims.claims.get(who.cluster_id)
        if claimed is None:
            raise NotAllowed(
                f"cluster {who.cluster_id} does not have this log, and {who.peer.name} may "
                "not claim it: that needs the rights 'write' and 'claim'"
            )
        if claimed != claims.newest:
            raise _followed(claims, claimed)
        return claimed

    def view(self, who: Greeting, members: tuple[str, ...], lost: frozenset[str]) -> ClaimedView:
        """A view without `lost`: the newest one, or the next one with exactly `members`. Raises
        `VoidIncarnation` and `NotAllowed`."""

        def there(claims: ClaimManifest) -> ClaimManifest | None:
            if claims.claims.get(who.cluster_id) != claims.newest:
                raise _followed(claims, claims.claims.get(who.cluster_id, 0))
            _demand_admitted(claims, who)
            demand_authority(claims, who)  # even without a new claim, because this bars members
            if who.member in claims.members and lost.isdisjoint(claims.members):
                # A lost member that says hello for the first time must not be admitted.
                return claims.barring(lost)
            return None

        def following(claims: ClaimManifest, incarnation: int) -> ClaimManifest:
            return claims.with_claim(who.cluster_id, incarnation, members, tuple(sorted(lost)))

        claims = self._claim(who, there, following)
        return ClaimedView(claims.newest, claims.members)

    def _claim(
        self,
        who: Greeting,
        existing: Callable[[ClaimManifest], ClaimManifest | None],
        following: Callable[[ClaimManifest, int], ClaimManifest],
    ) -> ClaimManifest:
        """The newest claim, which belongs to this cluster, with its lifetime published. `existing`
        returns the manifest to publish if the newest claim can be used, or None. `following`
        returns the manifest with the next claim."""
        reserved = outdated = 0
        former, began = "", self._log.clock.monotonic()

        def change(claims: ClaimManifest) -> ClaimManifest | None:
            nonlocal reserved, former
            former = claims.cluster_id
            fitting = existing(claims)
            # If the permit is missing, another cluster is claiming the log, or this log is a copy.
            if (
                fitting is not None
                and claims.newest != outdated
                and (not claims.newest or self._permit_is_there(claims.newest))
            ):
                return fitting if fitting != claims else None
            if reserved <= claims.newest:
                demand_authority(claims, who)  # before a number is taken
                reserved = reserve(self._cluster)
            return following(fitting or claims, reserved)

        while True:
            claims = self._log.claims.update(change)
            incarnation = claims.newest
            if not _begun(self._log.clusters.read()[1], incarnation):
                shut_out_others(self._log, f"Hazelcast cluster {who.cluster_id!r}", embedded=True)
                if self._log.clusters.read()[1].embedded >= incarnation:
                    outdated = incarnation  # the program's changes would be newer than the members'
                    continue
                if not begin(self._cluster, claims):
                    continue  # there is a newer claim
            self._number, self._known = self._log.claims.read()
            if incarnation == reserved:
                self._audit(claims, who, former)
                if (tracer := tracing.current()) is not None:
                    seconds = self._log.clock.monotonic() - began
                    tracer.ended("claim", seconds, {"incarnation": incarnation})
            return claims

    def _audit(self, claims: ClaimManifest, who: Greeting, former: str) -> None:
        """Write a log line for audits."""
        identity = self._log.identity
        about = {
            "log": f"{identity.namespace}/{identity.cluster}",
            "node": identity.node,
            "incarnation": claims.newest,
            "member": who.member,
        }
        if former == who.cluster_id:
            _log.warning(
                "view claimed",
                cluster=who.cluster_id,
                members=len(claims.members),
                lost=list(claims.lost),
                peer=who.peer.name,
                **about,
            )
        else:
            _log.warning(
                "log claimed",
                cluster=who.cluster_id,
                former=former,
                peer=who.peer.name,
                token=bool(claims.tokens),
                **about,
            )
        if not claims.tokens:
            _log.info(
                "this log has no token: every peer that may connect and claim can take the log "
                "from its cluster; docs/how-to/keys.md, The cluster's token"
            )

    def _returns(self, claims: ClaimManifest, claimed: int, who: Greeting, is_new: bool) -> bool:
        """Whether the plug-in is new, so that it has sent no void changes. False for a plug-in of
        the newest incarnation: its cluster was merged into the older one. Only these two may claim
        for an older cluster again; for all others, raises `VoidIncarnation`."""
        plugins = self._log.manifests.read()[1].plugins
        if f"{who.plugin}/{claims.newest}" in plugins:
            return False
        if (
            who.view
            or not is_new
            or any(entered.rpartition("/")[0] == who.plugin for entered in plugins)
        ):
            raise _followed(claims, claimed)
        return True

    def _permit_is_there(self, incarnation: int) -> bool:
        return self._log.store.exists(layout.claim_path(self._folder, incarnation))


def reserve(cluster: ClusterLog) -> int:
    """Reserve the next incarnation of this cluster, and create its permit. Raises `CorruptLog` if
    an older copy replaced the cluster's manifest."""
    current_cluster(cluster.context, cluster.folder, cluster.manifests)
    incarnation = cluster.manifests.update(
        lambda manifest: replace(manifest, incarnation=manifest.incarnation + 1)
    ).incarnation
    with suppress(AlreadyExists):  # created by an earlier attempt whose response was lost
        cluster.store.create(layout.claim_path(cluster.folder, incarnation), b"")
    return incarnation


def begin(cluster: ClusterLog, claims: ClaimManifest) -> bool:
    """Publish the lifetime of the newest claim. Returns False if a later one has begun."""
    incarnation = claims.newest
    cutoffs: tuple[object, Cutoffs] | None = None

    def publish(manifest: ClusterManifest) -> ClusterManifest | None:
        nonlocal cutoffs
        if any(lifetime.incarnation >= incarnation for lifetime in manifest.lifetimes):
            # An older lifetime must not begin after a later one: its cutoffs could void entries of
            # the later one.
            return None
        # The cutoffs must not be below those of an earlier lifetime, and the other logs that cover
        # a missing one must not have changed.
        basis = manifest.lifetimes, manifest.losses
        if cutoffs is None or cutoffs[0] != basis:
            cutoffs = basis, cutoffs_of(cluster, claims)
        cuts, covered = cutoffs[1]
        # An earlier lifetime with the same cuts voids nothing that the new one does not void. So
        # any number of claims without appends between them leaves one record.
        earlier = [lifetime for lifetime in manifest.lifetimes if lifetime.cuts != cuts]
        lifetimes = (*earlier, IncarnationRecord(claims.cluster_id, incarnation, cuts))
        # Entries that only the disks of covered nodes have are void now, so they no longer count as
        # copies.
        manifest = manifest.with_loss(*covered)
        return replace(manifest, lifetimes=lifetimes, token=manifest.token or bool(claims.tokens))

    return _begun(cluster.manifests.update(publish), incarnation)


def cutoffs_of(cluster: ClusterLog, claims: ClaimManifest) -> Cutoffs:
    """The end of each node's log. It is read after the permits of all older incarnations were
    deleted, so everything that was acknowledged for them is below it."""
    delete_permits(cluster, max(1, claims.newest - PERMITS_BY_NAME), claims.newest)
    return find_cutoffs(cluster)


def delete_permits(cluster: ClusterLog, first: int, end: int) -> None:
    """Delete the permits of incarnations before `end`: all from `first` on by name, and the older
    ones that a listing shows."""
    store, folder = cluster.store, cluster.folder
    listed = {
        file.path
        for file in store.list(f"{folder}/claims")
        if (layout.parse_claim_path(file.path) or end) < end
    }
    for path in listed | {layout.claim_path(folder, older) for older in range(first, end)}:
        store.delete(path)


def check_token(claims: ClaimManifest, who: Greeting) -> None:
    """Raises `NotAllowed` for a wrong token. A member without a token may connect, but not
    claim."""
    if who.token and claims.tokens and not _has_token(claims, who):
        raise NotAllowed(
            f"the token of member {who.member} is not a token of this log; correct its property "
            "cluster-token-file"
        )


def demand_authority(claims: ClaimManifest, who: Greeting) -> None:
    """Raises `NotAllowed` unless this peer may claim the log."""
    lacks = _lacks(claims, who)
    if lacks:
        raise NotAllowed(lacks)


def _lacks(claims: ClaimManifest, who: Greeting) -> str:
    """Why this peer may not claim the log; "" if it may."""
    if Right.CLAIM not in who.peer.rights:
        return (
            f"{who.peer.name} has no right 'claim', which a new cluster and a view of a cluster "
            "need"
        )
    if claims.closed:
        return (
            "this log is a repaired copy, and it is not known who may claim it; on this log, "
            f"{CLOSED_ADVICE}"
        )
    if claims.tokens and not _has_token(claims, who):
        return (
            f"this log has a token, and member {who.member} did not send it, so it may not "
            "claim the log. Set the property "
            "imap-wal.cluster-token-file on every member; if the token is lost: imap-wal claim "
            "--forget-tokens"
        )
    return ""


def _has_token(claims: ClaimManifest, who: Greeting) -> bool:
    hashed = token_hash(who.token)
    return any(compare_digest(hashed, token) for token in claims.tokens)


def _demand_admitted(claims: ClaimManifest, who: Greeting) -> None:
    if not claims.admits(who.member, who.view):
        raise VoidIncarnation(
            f"member {who.member} was left out of view {claims.newest}: it must join the "
            "cluster again as a new member; restart it if it does not"
        )


def _followed(claims: ClaimManifest, claimed: int) -> VoidIncarnation:
    return VoidIncarnation(
        f"this cluster's incarnation {claimed} was followed by {claims.newest}, of cluster "
        f"{claims.cluster_id}: "
        "restart the members of this cluster, one after the other or all at once"
    )


def _begun(manifest: ClusterManifest, incarnation: int) -> bool:
    """Whether the lifetime of this incarnation is published."""
    return any(lifetime.incarnation == incarnation for lifetime in manifest.lifetimes)


class Cutoffs(NamedTuple):
    """Node → the position where its log ends now. `covered`: missing nodes of whose unseen entries
    other logs have all that were acknowledged."""

    cuts: dict[str, Position]
    covered: frozenset[str] = frozenset()


def find_cutoffs(log: ClusterLog) -> Cutoffs:
    """The position where every node's log ends now; entries up to it count. A registered node whose
    log is missing is cut after everything, so its entries count if it returns. But if other logs
    have each acknowledged change of it, it is cut after what can be seen: otherwise a change that
    counts as absent from now on would return with it."""
    for _ in range(ATTEMPTS):
        state = log.state()
        covered = state.covered_by_copies
        cuts = dict.fromkeys(state.missing, END)
        try:
            for name in state.nodes:
                node_state = log.node(name)  # its disk may have become unreachable since
                cuts[name] = (
                    END
                    if node_state.missing
                    else log.end_of(node_state, node_state.manifest.checkpoint)
                )
            for name in covered:
                part = state.parts[name]
                cuts[name] = log.end_of(part, part.manifest.removed)
        except NotFound:
            continue
        return Cutoffs(cuts, covered)
    raise NotFound("the logs change too fast to find their ends; try again", log.folder)
