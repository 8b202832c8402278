"""The store of a process that asks another one."""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from typing import Any, NoReturn, Unpack

from imap_wal.checks import check_seconds, location
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.embedded import opening
from imap_wal.embedded.durable_map import DurableMap
from imap_wal.embedded.labels import missing
from imap_wal.embedded.opening import OpenOptions
from imap_wal.embedded.store import Store, StoreStatistics
from imap_wal.errors import InvalidSetting
from imap_wal.rewrite.compaction import Compaction
from imap_wal.serializer import (
    MsgpackSerializer,
    RawSerializer,
    Serializer,
    serializer_of,
)
from imap_wal.workers.election import Election
from imap_wal.workers.endpoint import Endpoint, LocalEndpoint, default_path
from imap_wal.workers.map_client import MapClient, RemoteState, RemoteWriter
from imap_wal.workers.map_server import ServedMaps
from storage_backends.location import Place

TIMEOUT_S = 30.0


def serving_maps(url: Place, endpoint: Endpoint, options: OpenOptions) -> Election:
    """The election of the process that serves the maps of a URL."""

    def open_maps() -> ServedMaps:
        # Whoever serves next can compact: the others wait for it meanwhile.
        given: OpenOptions = {"auto_rewrite_close_s": 0, **options}
        store = opening.open(url, **given)
        store.is_closed_at_exit()
        try:
            return ServedMaps(store)
        except BaseException:
            store.close()
            raise

    return Election(url, endpoint, options.get("clock") or SystemClock(), open_maps)


def connect(
    url: str | os.PathLike[str],
    *,
    socket: str | os.PathLike[str] | None = None,
    serve: bool = True,
    timeout_s: float = TIMEOUT_S,
    **options: Unpack[OpenOptions],
) -> Store:
    """Durable maps that several processes of one machine use at the same time, such as the workers
    of a web application. One of them has the log open and serves the others over a Unix socket. If
    it ends or is killed, another one takes its place, and requests under way are sent again; each
    counts once.

    Args:
        url: a folder or URL, the same in all processes.
        socket: the path of the socket; None: in a folder of this user for temporary files, derived
            from `url`, `namespace` and `cluster`.
        serve: this process may serve. With False it waits for another one, such as
            `imap-wal serve`.
        timeout_s: how long an operation may take, with all its repetitions, in seconds.
        **options: options of `imap_wal.open`, the same in all processes, for the one that serves.

    Returns:
        A store with the maps, in this process or in another one. Each read is a request too.
        Changes are atomic among all processes, and share commits. Close it, or use it in a `with`
        statement.

    Raises:
        InvalidSetting: an option is not valid, or other users can write to the folder of the
            socket.
        WriterLocked: another program has the log open, and does not serve it.
        OutcomeUnknown: a change was sent, and no process answered in time.
        StorageUnavailable: no process answered in time; of a change: it was not sent.
        Others: those of `imap_wal.open`, from a process that could not open the log.
    """
    if not isinstance(serve, bool):
        raise InvalidSetting(f"serve is {serve!r}; it takes True or False")
    check_seconds(timeout_s, "timeout_s")
    if str(location(url)).startswith("memory:"):
        raise InvalidSetting(
            "other processes cannot see a memory:// storage; pass a folder or another URL"
        )
    for name in ("read_only", "follow", "shared", "wal_filter"):
        if options.get(name):
            raise InvalidSetting(f"{name} is an option of imap_wal.open, not of connect")
    serializer_of(options.get("serializer"))
    namespace, cluster = options.get("namespace", "default"), options.get("cluster", "embedded")
    endpoint = LocalEndpoint(socket or default_path(url, namespace, cluster))
    return ConnectedStore(serving_maps(url, endpoint, options), endpoint, timeout_s, options, serve)


class ConnectedStore(Store):
    """From `connect`. Methods have the errors of `connect` too."""

    def __init__(
        self,
        serving: Election,
        endpoint: Endpoint,
        timeout_s: float,
        options: OpenOptions,
        serves: bool,
    ) -> None:
        self._serving, self.url = serving, serving.url
        elect: Callable[[], bool] = serving.elect if serves else lambda: False
        self._client = MapClient(
            endpoint,
            timeout_s,
            serving.patience_s(timeout_s),
            elect,
            options.get("randomness") or SystemRandomness(),
        )
        self.changes = RemoteWriter(self._client, options.get("clock"))
        self._serializer = serializer_of(options.get("serializer")) or MsgpackSerializer()
        self.maps()  # the first request finds out what is wrong

    @property
    def is_serving(self) -> bool:
        """Whether this process is the one that serves now."""
        return self._serving.is_serving

    def _map(
        self,
        name: str,
        wanted: Serializer[Any, Any] | None,
        disable_wal: bool,
        sorted: bool,
    ) -> DurableMap[Any, Any]:
        if disable_wal:
            raise InvalidSetting("a map of `connect` is in the log of another process")
        if sorted:
            raise InvalidSetting(
                "a map of `connect` cannot be sorted: its keys are in the process that serves; "
                "read them with `items(prefix=…)`, or sort them after that"
            )
        label = self._client.ask("label", (name, "" if wanted is None else wanted.name))
        own: tuple[Serializer[Any, Any], ...] = (
            self._serializer,
            MsgpackSerializer(),
            RawSerializer(),
        )
        used = wanted or next((kind for kind in own if kind.name == label), None)
        if used is None:
            raise InvalidSetting(f"map {name!r}: {missing(label)}")
        return DurableMap(self.changes, RemoteState(name, used, self._client))

    def queue(self, name: str, *, serializer: Serializer[Any, Any] | None = None) -> NoReturn:
        """Raises `InvalidSetting`: the log is in the process that serves."""
        _ = self.changes.log
        raise AssertionError("unreachable")

    def __repr__(self) -> str:
        return f"<ConnectedStore {self.url!r}{' closed' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        return escape(repr(self))

    def maps(self) -> list[str]:
        """As for `Store.maps`."""
        return list(self._client.ask("maps"))

    def sync(self) -> None:
        """As for `Store.sync`."""
        self._client.ask("sync")

    def flush_wal(self, sync: bool = True) -> None:
        """As for `sync`."""
        self.sync()

    def archive(self) -> int:
        """As for `Store.archive`."""
        return int(self._client.ask("archive"))

    def compact(self) -> Compaction:
        """As for `Store.compact`."""
        return Compaction(*self._client.ask("compact"))

    @property
    def statistics(self) -> StoreStatistics:
        """As for `Store.statistics`, in the process that serves. In any other it raises
        `InvalidSetting`."""
        server = self._serving.server
        if server is None or not self._serving.is_serving:
            raise InvalidSetting("the statistics of the log are in the process that serves it")
        served = server.served
        assert isinstance(served, ServedMaps)
        return served.store.statistics

    def close(self) -> None:
        """Close the connections. If this process serves, it stops that, and another one may serve.
        Safe to call twice. Raises the errors of `Store.close`."""
        self._close(0)

    def _close(self, wait_s: float) -> None:
        self.changes.openness.check_process()
        self._client.close()
        self._serving.stop()
