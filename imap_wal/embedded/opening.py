"""Open the durable maps of a folder or URL.

open ─▶ lock, recover the tail ─▶ claim an incarnation ─▶ shut out the writers of other nodes ─▶
`Store`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.embedded.serializer import MsgpackSerializer, Serializer
from imap_wal.embedded.store import Store
from imap_wal.embedded.wal_filter import WalFilter
from imap_wal.errors import InvalidSetting, StorageUnavailable
from imap_wal.layout import Identity
from imap_wal.manifest.cluster import ClusterManifest, claim_manifests
from imap_wal.manifest.older import current_cluster
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.log_writer import LogWriter
from imap_wal.security.encryption import with_keys
from imap_wal.settings import RecoveryPolicy, SettingsOptions, choose, location
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import OTHER_NODE, NodeLog
from imap_wal.write.opening import open_node_log, shut_out_others
from storage_backends import SegmentStore, StorageError, open_store


class OpenOptions(SettingsOptions, total=False):
    """Every option of `open`, for functions that pass them on."""

    namespace: str
    cluster: str
    node: str
    takeover: bool
    serializer: Serializer | None
    clock: Clock | None
    randomness: Randomness | None
    storage: SegmentStore | None
    wal_dir: str | os.PathLike[str]
    storage_options: Mapping[str, Any] | None
    wal_filter: WalFilter | None
    shared: bool


def open(  # the public name: imap_wal.open
    url: str | os.PathLike[str],
    *,
    namespace: str = "default",
    cluster: str = "embedded",
    node: str = "embedded",
    takeover: bool = False,
    serializer: Serializer | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    storage: SegmentStore | None = None,
    wal_dir: str | os.PathLike[str] = "",
    storage_options: Mapping[str, Any] | None = None,
    wal_filter: WalFilter | None = None,
    shared: bool = False,
    **settings: Unpack[SettingsOptions],
) -> Store:
    """Open (or create) the durable maps under `url`, a folder or any fsspec URL; `settings` are the
    fields of `Settings`. `wal_dir`: another URL for the segments being written, for example on a
    quick local disk, with archives and snapshots on an object store. The root remembers it, but
    each open must name it if it is on another kind of storage than the root. `storage_options`:
    options of the storage of `url`, such as credentials; they are never shown or stored.
    `wal_filter`: sees every entry of the log before it counts, and keeps, skips or changes it, or
    stops there (`imap_wal.embedded.wal_filter`).

    The maps of a cluster have one writer: an open shuts out every store that is open under another
    node name, which then acknowledges nothing more (`Fenced`). `shared=True` leaves those alone,
    for processes that write different keys at the same time, each under a node name of its own:
    none sees what another writes before it is opened again.

    `WriterLocked` when another process holds the node (`takeover=True` shuts it out), `CorruptLog`
    and its siblings for damage, `StorageUnavailable` when the storage fails, `InvalidSetting` for
    an impossible setting."""
    for name, value in (("takeover", takeover), ("shared", shared)):
        if not isinstance(value, bool):  # "no" would shut another store out
            raise InvalidSetting(f"{name} is {value!r}; it takes True or False")
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    chosen = choose(settings, OpenOptions.__annotations__)
    identity = Identity(namespace, cluster, node)
    identity.check()
    url, wal_dir = (
        location(url, options=storage_options, file_mode=chosen.file_mode),
        location(wal_dir, "wal_dir"),
    )
    try:
        store = with_keys(storage or open_store(url, wal_dir=wal_dir), chosen.encryption_keys)
        all_logs = ClusterLog(store, namespace, cluster, clock, randomness)
        _demand_ours(all_logs, node, chosen.recovery_policy)
        context = LogContext(store, identity, chosen, clock, randomness)
        log = open_node_log(
            context, what=f"imap_wal.open({url!r})", takeover=takeover, embedded=True, maps=True
        )
        try:
            incarnation = next_incarnation(log)
            if not shared:
                # After the claim of an incarnation: a store that is opened at the same moment and
                # claims a later one shuts this one out.
                shut_out_others(log, f"{OTHER_NODE}, under node name {node!r}")
            return Store(
                LogWriter(log, all_logs),
                all_logs,
                incarnation,
                serializer or MsgpackSerializer(),
                wal_filter,
                shared,
            )
        except BaseException:
            log.close(clean=False)
            raise
    except StorageError as error:
        raise StorageUnavailable(f"{url}: {error}") from error


def _demand_ours(logs: ClusterLog, node: str, policy: RecoveryPolicy) -> None:
    """Refuse before anything is written: once a node is registered, all others wait for its log.
    `InvalidSetting` in a cluster of Hazelcast members; `MissingNode` for a new node where another
    one's log cannot be read."""
    manifest = logs.manifest()
    claims = claim_manifests(logs.store, logs.folder, manifest.claims, logs.clock, logs.randomness)
    if claims.read()[1].newest:
        raise _of_members(logs.cluster, logs.namespace)
    if manifest.nodes and node not in manifest.nodes:
        logs.state().demand(policy)


def _of_members(cluster: str, namespace: str) -> InvalidSetting:
    return InvalidSetting(
        f"cluster {cluster!r} in namespace {namespace!r} belongs to Hazelcast members; open "
        "another cluster name, or read it with `imap-wal export`"
    )


def next_incarnation(log: NodeLog) -> int:
    """Claim the next incarnation for an embedded open, by compare-and-swap. `InvalidSetting` where
    Hazelcast members write: the next lifetime of their cluster would void what this store
    acknowledges. `CorruptLog` where the cluster's manifest was put back from an older copy."""
    current_cluster(log.store, log.identity.cluster_folder, log.clusters, log.clock, log.randomness)

    def claim(manifest: ClusterManifest) -> ClusterManifest:
        if log.claims.read()[1].newest:
            raise _of_members(log.identity.cluster, log.identity.namespace)
        return replace(
            manifest, incarnation=manifest.incarnation + 1, embedded=manifest.incarnation + 1
        )

    return log.clusters.update(claim).incarnation
