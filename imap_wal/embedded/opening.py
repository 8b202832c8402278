"""Opens the durable maps of a folder or URL.

open ─▶ lock, prove all logs, recover the tail ─▶ claim an incarnation ─▶ fence writers of other
        nodes ─▶ `Store`

`imap_wal.write.opening` does the first step, for one node's log. A refused open changes nothing.
Damage that only shows when all entries are read is found by the restore, after the open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from imap_wal.arrow_library import demand_archives
from imap_wal.checks import check_seconds, location
from imap_wal.clock import Clock, Randomness
from imap_wal.context import open_context
from imap_wal.embedded.read_only import ReadOnlyStore, poll_s
from imap_wal.embedded.store import Store
from imap_wal.embedded.wal_filter import WalFilter
from imap_wal.errors import InvalidSetting, StorageUnavailable, WriterLocked
from imap_wal.inspect.running_writer import writer_of
from imap_wal.layout import Identity
from imap_wal.manifest.claims import claim_manifests
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog
from imap_wal.manifest.older import current_cluster
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.proof import prove_restore
from imap_wal.retention.log_writer import LogWriter
from imap_wal.retention.other_process import OtherProcess, is_reachable
from imap_wal.rewrite.compaction import KEEP_S
from imap_wal.serializer import MsgpackSerializer, Serializer, SerializerName, serializer_of
from imap_wal.settings import SettingsOptions, choose
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import NodeOpening, open_node_log
from imap_wal.write.other_writers import not_closed, prove_others, shut_out_others
from imap_wal.write.permit import OTHER_NODE
from storage_backends import SegmentStore, StorageError, with_url
from storage_backends.location import Place


class OpenOptions(SettingsOptions, total=False):
    """The keyword arguments of `open`, for functions that pass them on."""

    serializer: Serializer[Any, Any] | SerializerName | None
    read_only: bool
    follow: bool | float
    takeover: bool
    shared: bool
    storage_options: Mapping[str, Any] | None
    wal_dir: str | os.PathLike[str]
    wal_filter: WalFilter | None
    namespace: str
    cluster: str
    node: str
    storage: SegmentStore | None
    clock: Clock | None
    randomness: Randomness | None


def open(  # the public name: imap_wal.open
    url: Place,
    *,
    serializer: Serializer[Any, Any] | SerializerName | None = None,
    read_only: bool = False,
    follow: bool | float = False,
    takeover: bool = False,
    shared: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    wal_dir: str | os.PathLike[str] = "",
    wal_filter: WalFilter | None = None,
    namespace: str = "default",
    cluster: str = "embedded",
    node: str = "embedded",
    storage: SegmentStore | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    **settings: Unpack[SettingsOptions],
) -> Store:
    """Open the durable maps under a folder or URL. Creates them if there are none.
    The maps of a cluster have one writer. If another process has them open, under this node name or
    another one, this raises `WriterLocked`. With `takeover=True` that process is fenced: it
    acknowledges nothing more. With `shared=True` the other node names do not matter. That is for
    processes that write different keys at the same time, each under its own node name. Such a store
    sees the changes of the others only when it is opened again.

    Args:
        url: a folder or any fsspec URL.
        serializer: for all maps that have none of their own; None: `MsgpackSerializer`. A name, as
            for `Store.map`.
        read_only: only read, beside a process that writes, or without one. This takes no lock,
            fences nothing and writes nothing. There may be any number of such stores. They show the
            maps as they are in the log; changes raise `ReadOnly`, `node` is not used.
        follow: with `read_only`, show new changes as they come; otherwise `Store.refresh` does. A
            number: look for them at this interval, in seconds. True: every 2 ms in local files,
            every second in other storages.
        takeover: fence the process that has the maps open; that process then acknowledges nothing
            more.
        shared: do not fence stores under other node names.
        storage_options: options for the storage of `url`, such as credentials. They are never
            shown or stored.
        wal_dir: another URL for the segments being written, for example on a fast local disk, with
            archives and snapshots on an object store. The root records it, but each open must pass
            it if its kind of storage is not that of the root.
        wal_filter: called with every entry of the log before it is applied; it keeps, skips or
            changes the entry, or stops (`imap_wal.embedded.wal_filter`).
        namespace: namespace of the cluster.
        cluster: cluster of the maps.
        node: name of this writer's log in the cluster.
        storage: an open storage, instead of the one that `url` names.
        clock: for tests: an object with `now_ms()`, Unix time in milliseconds, and `monotonic()`,
            in seconds.
        randomness: for tests.
        **settings: fields of `Settings`.

    Returns:
        The open store. Close it, or use it in a `with` statement.

    Raises:
        NoSuchLog: with `read_only`, there are no maps.
        WriterLocked: another process has the maps open for writing; `holder` names it.
        InvalidSetting: a setting is not valid, or the cluster belongs to Hazelcast members.
        LogError: a file of the log is damaged, or was written by a newer version.
        MissingNode: the log of a node of the cluster is missing
            (`recovery_policy="partial"` leaves its entries out).
        EncryptionError: the keys do not fit the log.
        MissingLibrary: the log has Parquet files, or a setting archives, and pyarrow is not
            installed.
        LostRace: other processes changed the manifests at each attempt to open.
        StorageUnavailable: the storage failed.
    """
    flags = ("takeover", takeover), ("shared", shared), ("read_only", read_only)
    for name, value in flags:
        if not isinstance(value, bool):  # the text "no" would count as True
            raise InvalidSetting(f"{name} is {value!r}; it takes True or False")
    default = serializer_of(serializer) or MsgpackSerializer()
    chosen = choose(settings, OpenOptions.__annotations__)
    demand_archives(chosen)
    identity = Identity(namespace, cluster, node)
    identity.check()
    if type(follow) is not bool:
        check_seconds(follow, "follow")
    if follow is not False and not read_only:
        raise InvalidSetting("follow is for stores with read_only=True")
    if read_only and (takeover or shared or wal_filter is not None):
        raise InvalidSetting("read_only cannot be combined with takeover, shared and wal_filter")
    place = location(url, options=storage_options, file_mode=chosen.file_mode)
    try:
        context = open_context(
            place,
            wal_dir=location(wal_dir, "wal_dir"),
            keys=chosen.encryption_keys,
            storage=storage,
            clock=clock,
            randomness=randomness,
        )
        all_logs = ClusterLog(context, namespace, cluster)
        if read_only:
            how_often = follow if type(follow) is not bool else poll_s(context.store.url)
            return ReadOnlyStore(
                all_logs,
                chosen,
                default,
                None if follow is False else how_often,
            )
        log_context = LogContext(context, identity, chosen)
        demand_claimable(log_context)
        others: dict[str, NodeOpening] = {}

        def prove() -> None:
            if not (shared or takeover):
                demand_no_other_writer(log_context)
            if not shared:
                others.update(prove_others(log_context))
            prove_restore(all_logs, node, chosen)

        log = open_node_log(
            log_context,
            holder=f"imap_wal.open({place.url!r})",
            takeover=takeover,
            embedded=True,
            maps=True,
            also=prove,
        )
        try:
            incarnation = next_incarnation(log)
            if not shared:
                # After the claim: of two stores that open at the same time, the one with the later
                # incarnation then fences the other.
                shut_out_others(log, f"{OTHER_NODE}, under node name {node!r}", proved=others)
            other = None
            if storage is None and is_reachable(context.place):
                other = OtherProcess(context.place, keep_s=KEEP_S)
            return Store(
                LogWriter(log, all_logs),
                all_logs,
                other,
                incarnation,
                default,
                wal_filter,
                shared,
                # A compaction in a thread would delay the program, so it runs only on request.
                compacts=other is not None or "auto_rewrite_percentage" in settings,
            )
        except BaseException:
            log.close(clean=False)
            raise
    except StorageError as error:
        raise StorageUnavailable(with_url(place, error)) from error


def demand_no_other_writer(context: LogContext) -> None:
    """Raise `WriterLocked` if a process writes the log of another node: an open would fence it. On
    a storage whose locks are leases, that is known until the lease expires."""
    for other in not_closed(context):
        holder = writer_of(context.store, other.node_folder, "imap_wal.open")
        if holder is not None:
            advice = (
                "stop that process, fence it with takeover=True, or only read with read_only=True; "
                "if several processes write different keys, open each with shared=True"
            )
            raise WriterLocked(other.node, holder, advice)


def demand_claimable(context: LogContext) -> None:
    """Raise what `next_incarnation` would raise, before anything is written: once a node's log is
    registered, all other nodes need it."""
    folder = context.identity.cluster_folder
    current_cluster(context.context, folder, ClusterManifestLog(context.context, folder))
    claims = claim_manifests(context.context, folder)
    if claims.read()[1].newest:
        raise _of_members(context.identity.cluster, context.identity.namespace)


def _of_members(cluster: str, namespace: str) -> InvalidSetting:
    return InvalidSetting(
        f"cluster {cluster!r} in namespace {namespace!r} belongs to Hazelcast members; open "
        "another cluster name, or read it with `imap-wal export`"
    )


def next_incarnation(log: NodeLog) -> int:
    """Claim the next incarnation for an embedded open, by compare-and-swap. Raises `InvalidSetting`
    if Hazelcast members write this log, because the next lifetime of their cluster would void what
    this store acknowledges. Raises `CorruptLog` if an older copy replaced the cluster's
    manifest."""
    current_cluster(log.context.context, log.identity.cluster_folder, log.clusters)

    def claim(manifest: ClusterManifest) -> ClusterManifest:
        if log.claims.read()[1].newest:
            raise _of_members(log.identity.cluster, log.identity.namespace)
        return replace(
            manifest, incarnation=manifest.incarnation + 1, embedded=manifest.incarnation + 1
        )

    return log.clusters.update(claim).incarnation
