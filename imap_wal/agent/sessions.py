"""Who is connected: plug-ins, the incarnation their cluster lives in, the session their changes are numbered by."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from imap_wal import layout
from imap_wal.committer import Batch
from imap_wal.errors import ImapWalError, OutcomeUnknown
from imap_wal.format import Position
from imap_wal.manifest import ClaimManifest, ClusterManifest, Lifetime, current_cluster, older_manifest
from imap_wal.restore import ClusterLog, pin_cuts
from imap_wal.writer import NodeLog, shut_out_others
from storage_backends import AlreadyExists

READ_AGAIN_S = 1.0
"""Claims without a permit are read again after this time even if the next number does not exist:
that file may have been created and deleted again."""

PERMITS_BY_NAME = 64
"""A claim deletes the permits of this many earlier incarnations by name, because a listing may be
too old to show them."""


class VoidIncarnation(ImapWalError):
    """A cluster that was followed by another wants to go on."""


@dataclass(slots=True)
class Session:
    """One plug-in start. `writer` is the connection that may append: the last that said hello with purpose `write`."""

    number: int
    incarnation: int
    cluster_id: str
    plugin: str
    writer: bytes = b""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection that said hello: whose it is, and what its hello gave."""

    plugin: str
    partition_count: int


class Sessions:
    """All sessions of one agent run over one NodeLog. Used by the serving thread."""

    def __init__(self, log: NodeLog, view_of: ClusterLog) -> None:
        self._log, self._cluster = log, view_of
        self._folder = log.identity.cluster_folder
        self._by_plugin: dict[tuple[str, int], Session] = {}
        self._by_number: dict[int, Session] = {}
        self._connections: dict[bytes, Connection] = {}
        self._shut: set[bytes] = set()
        """Connections of which an append was refused, until they say hello again."""
        begun = max((lifetime.incarnation for lifetime in log.clusters.read()[1].lifetimes), default=0)
        self._claims_number, self._claims = log.claims.read()
        if begun > self._claims.newest:
            raise older_manifest(log.claims.folder, f"incarnation {begun} has begun, the last one claimed is {self._claims.newest}")
        self._read_at = log.clock.monotonic()

    def hello(self, sender: bytes, about: dict[str, Any]) -> tuple[Session, bool]:
        """The session of a plug-in that says hello, and whether it is new here. Claims an incarnation for a cluster id that has none, or an older one than the newest.

        A plug-in has a session for each incarnation: what it sent in an older one may be void, and must not count as what is in the log."""
        cluster_id, plugin, purpose = str(about["cluster_id"]), str(about["plugin_uuid"]), about["purpose"]
        incarnation = self._incarnation(cluster_id, plugin)
        session = self._by_plugin.get((plugin, incarnation))
        new = session is None
        if session is None:
            session = Session(self._log.new_session(f"{plugin}/{incarnation}"), incarnation, cluster_id, plugin)
            self._by_plugin[plugin, incarnation] = self._by_number[session.number] = session
        if purpose == "write":
            if session.writer != sender:
                self._connections.pop(session.writer, None)
                self._shut.discard(session.writer)
            session.writer = sender
        self._connections[sender] = Connection(plugin, about.get("partition_count", 0))
        self._shut.discard(sender)
        return session, new

    def shut(self, sender: bytes) -> None:
        """Refuse whatever the connection sends from now on, until its next hello: a plug-in may have sent a second append before it hears that the first was refused,
        and `last_request` must not tell it one day that both are in the log."""
        if sender in self._connections:
            self._shut.add(sender)

    def connection(self, sender: bytes) -> Connection | None:
        """None: it has not said hello."""
        return self._connections.get(sender)

    def bye(self, sender: bytes) -> None:
        """The plug-in of this connection has stopped: forget all its connections."""
        plugin = self._connections[sender].plugin
        for each in [each for each, connection in self._connections.items() if connection.plugin == plugin]:
            del self._connections[each]
            self._shut.discard(each)
        for session in self._by_number.values():
            if session.plugin == plugin:
                session.writer = b""

    def refusal(self, sender: bytes, number: int) -> tuple[str, str] | None:
        """Why this connection may not append for the session, as (code, text); None when it may."""
        session = self._by_number.get(number)
        if session is None or not session.writer:
            return "not-ready", "say hello first"
        if session.writer != sender:
            return "superseded", "a later connection of this plug-in has taken over"
        newest = self._claims.newest
        if session.incarnation != newest:
            return "void-incarnation", f"this cluster's incarnation {session.incarnation} was followed by {newest}; say hello again"
        if sender in self._shut:
            return "not-ready", "an earlier append of this connection was refused; say hello again"
        return None

    def session(self, number: int) -> Session:
        return self._by_number[number]

    def check_newest(self, batches: Sequence[Batch]) -> None:
        """Called between sync and acknowledgement. If another cluster has claimed the log, older
        batches get an error. Costs one stat on a local file system."""
        current = self._newest()
        for batch in batches:
            own = self._by_number[batch.session].incarnation if batch.session else current
            if own != current:
                what = f"another cluster claimed this log after incarnation {own}"
                batch.error = OutcomeUnknown(f"{what}; say hello again")

    def _newest(self) -> int:
        """The incarnation that may write; 0 if the permit of the newest one known was deleted."""
        store, claims, before = self._log.store, self._log.claims, self._claims.newest
        if self._claims.permitted:
            if store.exists(layout.claim_path(self._folder, before)):
                return before
            self._claims_number, self._claims = claims.read()
            # The listing may be too old to show the newer claim.
            return self._claims.newest if self._claims.newest != before else 0
        now = self._log.clock.monotonic()
        if now - self._read_at >= READ_AGAIN_S or store.exists(claims.next_path(self._claims_number)):
            self._read_at = now
            self._claims_number, self._claims = claims.read()
        return self._claims.newest

    def _incarnation(self, cluster_id: str, plugin: str) -> int:
        reserved: int | None = None
        outdated = 0

        def claim(claims: ClaimManifest) -> ClaimManifest | None:
            nonlocal reserved
            claimed = claims.claims.get(cluster_id)
            if claimed is not None and claimed == claims.newest != outdated:
                if not claims.permitted or self._log.store.exists(layout.claim_path(self._folder, claimed)):
                    # Without the permit, another cluster is claiming the log now, or this log is a
                    # copy.
                    return None
            elif claimed is not None and claimed != claims.newest and f"{plugin}/{claims.newest}" not in self._log.manifests.read()[1].plugins:
                # Only a plug-in that was of the newest cluster may bring an older one back: its cluster was merged into that one.
                raise VoidIncarnation(f"this cluster's incarnation {claimed} was followed by {claims.newest}: start it anew")
            if reserved is None or reserved <= claims.newest:  # a number of its own, from where all writers of this cluster get theirs
                log = self._log
                current_cluster(log.store, log.identity.cluster_folder, log.clusters, log.clock, log.randomness)
                next_one = log.clusters.update(lambda manifest: replace(manifest, incarnation=manifest.incarnation + 1))
                reserved = next_one.incarnation
                with suppress(AlreadyExists):  # an earlier attempt created it
                    log.store.create(layout.claim_path(self._folder, reserved), b"")
            return claims.with_claim(cluster_id, reserved)

        while True:
            claims = self._log.claims.update(claim)
            incarnation = claims.claims[cluster_id]
            if _begun(self._log.clusters.read()[1], incarnation):
                return self._claimed(incarnation)
            shut_out_others(self._log, f"Hazelcast cluster {cluster_id!r}", embedded=True)
            if self._log.clusters.read()[1].embedded < incarnation:
                break
            outdated = incarnation  # the program's changes would win over those of the members
        cuts: dict[str, Position] | None = None

        def publish(manifest: ClusterManifest) -> ClusterManifest | None:
            nonlocal cuts
            if _begun(manifest, incarnation):
                return None
            if cuts is None:
                self._delete_permits(max(claims.permits, incarnation - PERMITS_BY_NAME), incarnation)
                # Older clusters have no permit now: what was acknowledged for them is below these.
                cuts = pin_cuts(self._cluster)
            known = (*manifest.lifetimes, Lifetime(cluster_id, incarnation, cuts))
            # A later claim may have been published first. `prune` needs them in order: it drops a
            # lifetime that the next one makes unnecessary.
            return replace(manifest, lifetimes=tuple(sorted(known, key=lambda lifetime: lifetime.incarnation)))

        self._log.clusters.update(publish)
        return self._claimed(incarnation)

    def _claimed(self, incarnation: int) -> int:
        self._claims_number, self._claims = self._log.claims.read()
        return incarnation

    def _delete_permits(self, first: int, end: int) -> None:
        """Delete the permits of incarnations before `end`: from `first` on by name, and those that
        a listing shows."""
        store, folder = self._log.store, self._folder
        listed = {file.path for file in store.list(f"{folder}/claims") if (layout.parse_claim_path(file.path) or end) < end}
        for path in listed | {layout.claim_path(folder, older) for older in range(first, end)}:
            store.delete(path)


def _begun(manifest: ClusterManifest, incarnation: int) -> bool:
    """Whether the lifetime of that incarnation is published."""
    return any(lifetime.incarnation == incarnation for lifetime in manifest.lifetimes)
