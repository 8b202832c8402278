"""Creates and opens logs. What `create` publishes is the first manifest of the node, with kind
"log"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from imap_wal import layout
from imap_wal.arrow_library import demand_archives
from imap_wal.checks import location
from imap_wal.clock import Clock, Randomness
from imap_wal.context import open_context
from imap_wal.embedded.opening import demand_claimable, next_incarnation
from imap_wal.errors import InvalidSetting, LogExists, NoSuchLog
from imap_wal.layout import Identity
from imap_wal.log.open_log import Log
from imap_wal.manifest.claims import claim_manifests
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.manifest.node import LOG, NodeManifest, NodeManifestLog
from imap_wal.manifest.store import ManifestLog
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import storage_errors
from imap_wal.read.proof import prove_keys
from imap_wal.retention.log_writer import LogWriter
from imap_wal.settings import Durability, Settings, SettingsOptions, choose
from imap_wal.write.context import LogContext
from imap_wal.write.opening import check_new_log, open_node_log
from storage_backends import SegmentStore
from storage_backends.location import Location, Place


def create(
    url: Place,
    *,
    namespace: str = "default",
    cluster: str = "log",
    node: str = "log",
    exist_ok: bool = False,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    storage: SegmentStore | None = None,
    wal_dir: Place = "",
    storage_options: Mapping[str, Any] | None = None,
    **settings: Unpack[SettingsOptions],
) -> Log:
    """Create a log and open it for writing. If several processes call this, one creates the log.
    Returns the open log. Close it, or use it in a `with` statement.

    Args:
        url: a folder or URL.
        namespace: namespace of the cluster.
        cluster: cluster of the log. It must not contain maps, because a restore of the maps would
            read this log's entries as changes of the maps.
        node: name of the log in its cluster.
        exist_ok: open the log if it exists already.
        clock: for tests.
        randomness: for tests.
        storage: an open storage, instead of the one that `url` names.
        wal_dir: as for `imap_wal.open`.
        storage_options: as for `imap_wal.open`.
        **settings: fields of `imap_wal.Settings`.

    Raises:
        LogExists: there is a log of this name.
        InvalidSetting: a setting is not valid, or the cluster contains maps.
        WriterLocked: another process has the log open for writing (with `exist_ok`).
        LogError: a file of the log is damaged, or was written by a newer version.
        MissingNode: the node is being forgotten, or its folder contains another log.
        EncryptionError: the keys do not fit the log.
        StorageUnavailable: the storage failed.
    """
    chosen = _settings(settings)
    identity = Identity(namespace, cluster, node)
    identity.check()
    place = location(url, options=storage_options, file_mode=chosen.file_mode)
    with storage_errors(place.url):
        context = _context(place, wal_dir, identity, chosen, storage, clock, randomness)
        check_new_log(context)
        _manifests(context).update(partial(_first_manifest, context, exist_ok))
        return _open(place.url, context, takeover=False)


def open(  # the public name: imap_wal.log.open
    url: Place,
    *,
    namespace: str = "default",
    cluster: str = "log",
    node: str = "log",
    takeover: bool = False,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    storage: SegmentStore | None = None,
    wal_dir: Place = "",
    storage_options: Mapping[str, Any] | None = None,
    **settings: Unpack[SettingsOptions],
) -> Log:
    """Open a log that `create` made, as its only writer. Returns the open log. Close it, or use it
    in a `with` statement.

    Args:
        url: a folder or URL.
        namespace: namespace of the cluster.
        cluster: cluster of the log.
        node: name of the log in its cluster.
        takeover: fence the process that has the log open for writing; that process then
            acknowledges nothing more.
        clock: for tests.
        randomness: for tests.
        storage: an open storage, instead of the one that `url` names.
        wal_dir: as for `imap_wal.open`.
        storage_options: as for `imap_wal.open`.
        **settings: fields of `imap_wal.Settings`.

    Raises:
        NoSuchLog: there is no log of this name.
        WriterLocked: another process has the log open for writing.
        InvalidSetting: a setting is not valid, or this is a log of maps.
        LogError: a file of the log is damaged, or was written by a newer version.
        MissingNode: the node is being forgotten, or its folder contains another log.
        EncryptionError: the keys do not fit the log.
        StorageUnavailable: the storage failed.
    """
    chosen = _settings(settings)
    identity = Identity(namespace, cluster, node)
    identity.check()
    place = location(url, options=storage_options, file_mode=chosen.file_mode)
    with storage_errors(place.url):
        context = _context(place, wal_dir, identity, chosen, storage, clock, randomness)
        _, manifest = _manifests(context).read()
        if manifest.empty:
            raise NoSuchLog(
                f"{place} has no log {node!r} in cluster {cluster!r}, namespace {namespace!r}; "
                "create it with imap_wal.log.create"
            )
        if manifest.kind != LOG:
            raise _of_maps(identity)
        return _open(place.url, context, takeover)


def _first_manifest(
    context: LogContext, exist_ok: bool, manifest: NodeManifest
) -> NodeManifest | None:
    """The first manifest of a new log; None: the log already exists, which `exist_ok` allows."""
    who = context.identity
    if manifest.empty:
        _check_neighbours(context)
        return replace(manifest, kind=LOG, forgotten=False)
    if manifest.kind != LOG:
        raise _of_maps(who)
    if not exist_ok:
        raise LogExists(
            f"log {who.node!r} in cluster {who.cluster!r}, namespace {who.namespace!r} already "
            "exists; open it, or choose another name"
        )
    return None


def _open(url: str, context: LogContext, takeover: bool) -> Log:
    who = context.identity
    logs = ClusterLog(context.context, who.namespace, who.cluster)

    def prove() -> None:
        demand_claimable(context)
        prove_keys(logs, who.node)

    log = open_node_log(
        context,
        holder=f"imap_wal.log.open({url!r})",
        takeover=takeover,
        embedded=True,
        also=prove,
    )
    try:
        incarnation = next_incarnation(log)
        return Log(url, LogWriter(log, logs), incarnation)
    except BaseException:
        log.close(clean=False)
        raise


def _settings(settings: SettingsOptions) -> Settings:
    chosen = choose(
        settings,
        ("namespace", "cluster", "node", "takeover", "exist_ok", "wal_dir", "storage_options"),
    )
    if chosen.acknowledges_early:
        raise InvalidSetting(
            "durability is 'async', or manual_wal_flush is true; a log returns positions, "
            "which are known only once they are written: choose 'always', 'interval' or 'os'"
        )
    if settings.get("auto_rewrite_percentage"):
        raise InvalidSetting(
            "auto_rewrite_percentage is for maps; a log keeps all its entries until shrink "
            "removes them"
        )
    demand_archives(chosen)
    return chosen


def _context(
    place: Location,
    wal_dir: Place,
    identity: Identity,
    settings: Settings,
    storage: SegmentStore | None,
    clock: Clock | None,
    randomness: Randomness | None,
) -> LogContext:
    context = open_context(
        place,
        wal_dir=location(wal_dir, "wal_dir"),
        keys=settings.encryption_keys,
        storage=storage,
        clock=clock,
        randomness=randomness,
    )
    store = context.store
    if settings.durability is Durability.INTERVAL and not store.capabilities.durable_append:
        raise InvalidSetting(
            f"durability is 'interval'; {store.url} cannot append, so an entry would be "
            "acknowledged before any reader can see it: choose 'always'"
        )
    return LogContext(context, identity, settings)


def _manifests(context: LogContext) -> ManifestLog[NodeManifest]:
    folder = context.identity.node_folder
    return NodeManifestLog(context.context, folder)


def _check_neighbours(context: LogContext) -> None:
    """Raises `InvalidSetting` if the cluster contains maps."""
    identity = context.identity
    _, manifest = ClusterManifestLog(context.context, identity.cluster_folder).read()
    others = [node for node in manifest.nodes if node != identity.node]
    kinds = {
        node: NodeManifestLog(context.context, layout.node_folder(identity.cluster_folder, node))
        .read()[1]
        .kind
        for node in others
    }
    claims = claim_manifests(context.context, identity.cluster_folder).read()[1]
    if claims.newest or any(kind != LOG for kind in kinds.values()):
        raise InvalidSetting(
            f"cluster {identity.cluster!r} in namespace {identity.namespace!r} contains maps; "
            "their restore would read this log's entries as changes of the maps: "
            "choose another cluster name"
        )


def _of_maps(identity: Identity) -> InvalidSetting:
    return InvalidSetting(
        f"node {identity.node!r} of cluster {identity.cluster!r}, namespace "
        f"{identity.namespace!r} is the log of maps: change the maps through imap_wal.open or "
        "Hazelcast, and "
        "read the log with imap_wal.log.LogReader"
    )
