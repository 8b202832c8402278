"""Which Hazelcast cluster may write, and which of its members: claims and views.

    hello of an unknown cluster id   the next incarnation, with an open list of members
    a request for a view             the next incarnation of the same cluster id, with a closed list

Both are one mechanism: permit ─▶ claim (compare-and-swap) ─▶ delete older permits ─▶ record the
cutoffs ─▶ publish the lifetime. If a process ends before it is done, the next hello completes the
claim.
See docs/decisions/0004 and 0023.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hmac import compare_digest

import structlog

from imap_wal import layout
from imap_wal.agent.access.keys import token_hash
from imap_wal.agent.access.peers import LOCAL, Peer, Right
from imap_wal.agent.membership.start import Start
from imap_wal.errors import ImapWalError, NotAllowed
from imap_wal.format import Position
from imap_wal.manifest.cluster import (
    CLOSED_ADVICE,
    ClaimManifest,
    ClusterManifest,
    IncarnationRecord,
)
from imap_wal.manifest.older import current_cluster, older_manifest
from imap_wal.read.cluster import ClusterLog, pin_cuts
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import shut_out_others
from storage_backends import AlreadyExists

READ_AGAIN_S = 1.0
"""Claims without a permit are read again after this time even if the next number does not exist:
that file may have been created and deleted again."""

PERMITS_BY_NAME = 64
"""A claim deletes the permits of this many earlier incarnations by name, because a listing may be
too old to show them."""


_log = structlog.get_logger("imap_wal.agent")


class VoidIncarnation(ImapWalError):
    """A cluster that was followed by another, or a member that was left out of a view."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a hello tells about the member. `view`: the incarnation that its cluster is in, as far
    as it knows; 0: not known. `token`: the cluster's. `peer`: who sent it."""

    cluster_id: str
    member: str
    plugin: str
    view: int = 0
    token: str = field(default="", repr=False)
    peer: Peer = LOCAL


@dataclass(frozen=True, slots=True)
class View:
    """An incarnation and its members; (): any member of the cluster may join."""

    incarnation: int
    members: tuple[str, ...]


class Claims:
    """The claims of one cluster, as one agent sees and makes them. Used by the serving thread."""

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
                f"incarnation {begun} has begun, the last one claimed is {self._known.newest}",
            )
        # The claims get a token before the cluster's manifest says so, and lose it after: so it is
        # lost only if they have none before and after that manifest is read.
        if (
            not self._known.names_token
            and log.clusters.read()[1].token
            and not log.claims.read()[1].names_token
        ):
            raise older_manifest(
                log.claims.folder, "this cluster has a token, and its claims have none"
            )
        self._read_at = log.clock.monotonic()

    @property
    def known(self) -> ClaimManifest:
        """The claims as they were last read."""
        return self._known

    def newest(self) -> int:
        """The incarnation that may write; 0 if the permit of the newest one known was deleted. One
        stat on a local file system."""
        store, claims, before = self._log.store, self._log.claims, self._known.newest
        if self._known.permitted:
            if self._permit_is_there(before):
                return before
            self._number, self._known = claims.read()
            # The listing may be too old to show the newer claim.
            return self._known.newest if self._known.newest != before else 0
        now = self._log.clock.monotonic()
        if now - self._read_at >= READ_AGAIN_S or store.exists(claims.next_path(self._number)):
            self._read_at = now
            self._number, self._known = claims.read()
        return self._known.newest

    def may_count(self, who: Greeting) -> bool:
        """Whether a cluster that starts has to know of this member: it is of the newest cluster, or
        may claim the log. As far as is known; a stranger must not delay a start."""
        return who.cluster_id == self._known.cluster_id or _lacks(self._known, who) == ""

    def enter(self, who: Greeting, is_new: bool, look: int = 0) -> int:
        """The incarnation in which a member that says hello may write. Claims one for a cluster id
        that has none, unless it has to wait (`start.Waits`). `is_new`: this plug-in has never been
        in any incarnation here. `look`: see `Start.demand`. `VoidIncarnation`, `NotAllowed`."""
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

        def anew(claims: ClaimManifest, incarnation: int) -> ClaimManifest:
            nonlocal tried
            tried = True  # if another cluster claims after this, its claim stays
            if who.token and not claims.tokens:
                claims = replace(claims, tokens=(token_hash(who.token),))
            claimed = claims.claims.get(who.cluster_id)
            if (
                claimed == claims.newest
            ):  # a copy of a log, or a program has an incarnation above it
                return claims.with_claim(who.cluster_id, incarnation, claims.members, claims.lost)
            # Members that were in the older incarnation hold what is not in the log.
            return claims.with_claim(
                who.cluster_id, incarnation, () if claimed is None else (who.member,)
            )

        incarnation = self._claim(who, admitted, anew).newest
        if tried:
            self._start.ended()
        return incarnation

    def of_reader(self, who: Greeting) -> int:
        """The newest incarnation, for a client of its cluster that only reads. Changes nothing, and
        does not complete a claim that is half done: the client may read while it is. `NotAllowed`,
        `VoidIncarnation`."""
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

    def view(self, who: Greeting, members: tuple[str, ...], lost: frozenset[str]) -> View:
        """A view without `lost`: the newest one, or the next with exactly `members`.
        `VoidIncarnation`, `NotAllowed`."""

        def there(claims: ClaimManifest) -> ClaimManifest | None:
            if claims.claims.get(who.cluster_id) != claims.newest:
                raise _followed(claims, claims.claims.get(who.cluster_id, 0))
            _demand_admitted(claims, who)
            demand_authority(claims, who)  # also without a claim: members may be kept out
            if who.member in claims.members and lost.isdisjoint(claims.members):
                # A member that says hello for the first time after it was lost must not be let in.
                return claims.barring(lost)
            return None

        def following(claims: ClaimManifest, incarnation: int) -> ClaimManifest:
            return claims.with_claim(who.cluster_id, incarnation, members, tuple(sorted(lost)))

        claims = self._claim(who, there, following)
        return View(claims.newest, claims.members)

    def _claim(
        self,
        who: Greeting,
        existing: Callable[[ClaimManifest], ClaimManifest | None],
        following: Callable[[ClaimManifest, int], ClaimManifest],
    ) -> ClaimManifest:
        """The newest claim, which is of this cluster, with its lifetime published. `existing`: the
        manifest to publish if the newest claim can be used, or None; `following`: the manifest with
        the given next claim."""
        reserved = outdated = 0
        former = ""

        def change(claims: ClaimManifest) -> ClaimManifest | None:
            nonlocal reserved, former
            former = claims.cluster_id
            fitting = existing(claims)
            # Without the permit, another cluster is claiming the log now, or this log is a copy.
            if (
                fitting is not None
                and claims.newest != outdated
                and (not claims.permitted or self._permit_is_there(claims.newest))
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
                    outdated = (
                        incarnation  # the program's changes would win over those of the members
                    )
                    continue
                if not begin(self._cluster, claims):
                    continue  # a newer claim came in between
            self._number, self._known = self._log.claims.read()
            if incarnation == reserved:
                self._tell(claims, who, former)
            return claims

    def _tell(self, claims: ClaimManifest, who: Greeting, former: str) -> None:
        """A line for the audit."""
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
                "this log has no token: whoever may connect and claim can take it from its "
                "cluster; docs/operations.md, The cluster's token"
            )

    def _returns(self, claims: ClaimManifest, claimed: int, who: Greeting, is_new: bool) -> bool:
        """Only two kinds of plug-in may claim for an older cluster again: one that is in the newest
        incarnation (its cluster was merged into the older one; False), and one that was in no
        incarnation yet: it has nothing in flight that was void. `VoidIncarnation`."""
        plugins = self._log.manifests.read()[1].plugins
        if f"{who.plugin}/{claims.newest}" in plugins:
            return False
        if (
            who.view
            or not is_new
            or any(known.rpartition("/")[0] == who.plugin for known in plugins)
        ):
            raise _followed(claims, claimed)
        return True

    def _permit_is_there(self, incarnation: int) -> bool:
        return self._log.store.exists(layout.claim_path(self._folder, incarnation))


def reserve(cluster: ClusterLog) -> int:
    """A new incarnation, from the counter that all writers of this cluster use, with its permit."""
    current_cluster(
        cluster.store, cluster.folder, cluster.manifests, cluster.clock, cluster.randomness
    )
    incarnation = cluster.manifests.update(
        lambda manifest: replace(manifest, incarnation=manifest.incarnation + 1)
    ).incarnation
    with suppress(AlreadyExists):  # our own create, whose answer was lost
        cluster.store.create(layout.claim_path(cluster.folder, incarnation), b"")
    return incarnation


def begin(cluster: ClusterLog, claims: ClaimManifest) -> bool:
    """Publish the lifetime of the newest claim; False if a later one has begun."""
    incarnation = claims.newest
    pinned: tuple[tuple[IncarnationRecord, ...], dict[str, Position]] | None = None

    def publish(manifest: ClusterManifest) -> ClusterManifest | None:
        nonlocal pinned
        if any(lifetime.incarnation >= incarnation for lifetime in manifest.lifetimes):
            # An older lifetime must not begin after a later one: its cut could void what counts
            # by the later one.
            return None
        if (
            pinned is None or pinned[0] != manifest.lifetimes
        ):  # never below the cuts of a lifetime before it
            pinned = manifest.lifetimes, pin(cluster, claims)
        lifetimes = (
            *manifest.lifetimes,
            IncarnationRecord(claims.cluster_id, incarnation, pinned[1]),
        )
        return replace(manifest, lifetimes=lifetimes, token=manifest.token or bool(claims.tokens))

    return _begun(cluster.manifests.update(publish), incarnation)


def pin(cluster: ClusterLog, claims: ClaimManifest) -> dict[str, Position]:
    """Where each node's log ends. It is read after the permits of all older incarnations are gone,
    so everything that was acknowledged for them is below."""
    delete_permits(cluster, max(claims.permits, claims.newest - PERMITS_BY_NAME), claims.newest)
    return pin_cuts(cluster)


def delete_permits(cluster: ClusterLog, first: int, end: int) -> None:
    """Delete the permits of incarnations before `end`: from `first` on by name, and those that a
    listing shows."""
    store, folder = cluster.store, cluster.folder
    listed = {
        file.path
        for file in store.list(f"{folder}/claims")
        if (layout.parse_claim_path(file.path) or end) < end
    }
    for path in listed | {layout.claim_path(folder, older) for older in range(first, end)}:
        store.delete(path)


def check_token(claims: ClaimManifest, who: Greeting) -> None:
    """`NotAllowed` for a wrong token. A member without one may connect: it cannot claim."""
    if who.token and claims.tokens and not _has_token(claims, who):
        raise NotAllowed(
            f"the token of member {who.member} is not the one of this log; its property "
            "cluster-token-file names another cluster's"
        )


def demand_authority(claims: ClaimManifest, who: Greeting) -> None:
    """`NotAllowed` unless this peer may have the log claimed."""
    lacks = _lacks(claims, who)
    if lacks:
        raise NotAllowed(lacks)


def _lacks(claims: ClaimManifest, who: Greeting) -> str:
    """Why this peer may not have the log claimed; "" if it may."""
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
            f"this log has a token, and member {who.member} did not give it: it may not "
            "claim the log. Set the map-store property "
            "cluster-token-file on every member; for a token that is lost: imap-wal claim "
            "--forget-tokens"
        )
    return ""


def _has_token(claims: ClaimManifest, who: Greeting) -> bool:
    given = token_hash(who.token)
    return any(compare_digest(given, each) for each in claims.tokens)


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
    """Whether the lifetime of that incarnation is published."""
    return any(lifetime.incarnation == incarnation for lifetime in manifest.lifetimes)
