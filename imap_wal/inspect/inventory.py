"""The logs under a URL, from listings and manifests alone: quick, and safe while a service runs."""

from __future__ import annotations

from collections.abc import Iterator

from imap_wal.context import Context
from imap_wal.errors import LogError
from imap_wal.manifest.roots import is_cluster
from imap_wal.names import decode
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState


def take_inventory(
    context: Context,
    namespaces: tuple[str, ...] = (),
    clusters: tuple[str, ...] = (),
    damaged: list[tuple[str, LogError]] | None = None,
) -> list[ClusterState]:
    """All clusters under a root, or those with the given names. `damaged` gets those of which a
    newest manifest cannot be read; without it, they are an error."""
    states: list[ClusterState] = []
    for state in looks_at(context, namespaces, clusters):
        if not state.lost:
            states.append(state)
            continue
        error = next(iter(state.lost.values()))[0]
        if damaged is None:
            raise error
        damaged.append((str(state), error))
    return states


def looks_at(
    context: Context, namespaces: tuple[str, ...] = (), clusters: tuple[str, ...] = ()
) -> Iterator[ClusterState]:
    """The same; if a newest manifest cannot be read, with the one before it."""
    store = context.store
    top = store.folders("")
    if is_cluster(store, top):
        return
    for namespace in top:
        if namespaces and decode(namespace) not in namespaces:
            continue
        for cluster in store.folders(namespace):
            if clusters and decode(cluster) not in clusters:
                continue
            if {"nodes", "manifest", "snapshot"} & set(store.folders(f"{namespace}/{cluster}")):
                log = ClusterLog(context, decode(namespace), decode(cluster))
                yield log.look(everything=True)
