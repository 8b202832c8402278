"""Creates and opens streams. Each partition is a log of its own (`imap_wal.log`) in one cluster,
whose name says how many partitions there are: `3-of-8`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

from imap_wal import log
from imap_wal.checks import location
from imap_wal.clock import Clock, Randomness
from imap_wal.context import open_context
from imap_wal.errors import InvalidSetting, NoSuchLog
from imap_wal.log.open_log import Log
from imap_wal.names import PARTITIONS_MAX, partition_count, partition_node
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import storage_errors
from imap_wal.serializer import MsgpackSerializer, Serializer, SerializerName, serializer_of
from imap_wal.settings import SettingsOptions, choose
from imap_wal.stream.partition import Partition
from imap_wal.stream.reading import ReadPartition
from imap_wal.stream.stream import Stream
from storage_backends import SegmentStore
from storage_backends.location import Place

LOCK_TABLE_BYTES = 256 * 2**20


class StreamOptions(SettingsOptions, total=False):
    """The keyword arguments of `open` that all processes of a stream pass."""

    lock_table_bytes: int
    wal_dir: Place
    storage_options: Mapping[str, Any] | None
    clock: Clock | None
    randomness: Randomness | None


class StreamOpenOptions(StreamOptions, total=False):
    """The keyword arguments of `open`, for functions that pass them on."""

    partitions: int | None
    name: str
    namespace: str
    serializer: Serializer[Any, Any] | SerializerName | None
    read_only: bool
    takeover: bool
    storage: SegmentStore | None


def demand_options(options: StreamOptions) -> None:
    """Raises `InvalidSetting` for an unknown option, and for a setting that is not valid."""
    settings = {key: value for key, value in options.items() if key not in _OTHERS}
    choose(settings, _OTHERS)


_OTHERS = StreamOptions.__annotations__.keys() - SettingsOptions.__annotations__.keys()


def open(  # the public name: imap_wal.stream.open
    url: Place,
    *,
    partitions: int | None = None,
    name: str = "stream",
    namespace: str = "default",
    serializer: Serializer[Any, Any] | SerializerName | None = None,
    lock_table_bytes: int = LOCK_TABLE_BYTES,
    read_only: bool = False,
    takeover: bool = False,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    storage: SegmentStore | None = None,
    wal_dir: Place = "",
    storage_options: Mapping[str, Any] | None = None,
    **settings: Unpack[SettingsOptions],
) -> Stream:
    """Open a stream as its only writer, or to read it. Close it, or use it in a `with` statement.

    Args:
        url: a folder or URL.
        partitions: number of partitions, which never changes. If there is no stream, it is created.
            None: only open.
        name: of the stream, its cluster in the log.
        namespace: namespace of the cluster.
        serializer: of the data of transactions, as for `imap_wal.open`.
        lock_table_bytes: memory for the locks of all partitions. A partition whose locks do not fit
            estimates them: then it may refuse too many transactions, never too few.
        read_only: only read, and run consumers; another process may write the stream.
        takeover: fence the process that writes the stream.
        clock: for tests.
        randomness: for tests.
        storage: an open storage, instead of the one that `url` names.
        wal_dir: as for `imap_wal.open`.
        storage_options: as for `imap_wal.open`.
        **settings: fields of `imap_wal.Settings`.

    Raises:
        NoSuchLog: there is no stream, and `partitions` is None.
        InvalidSetting: the stream has another number of partitions, or a setting is not valid.
        WriterLocked: another process writes the stream.
        LogError: a file is damaged.
        StorageUnavailable: the storage failed.
    """
    place = location(url, options=storage_options)
    choose(settings, ())
    if type(lock_table_bytes) is not int or lock_table_bytes < 1:
        raise InvalidSetting(f"lock_table_bytes is {lock_table_bytes!r}; it takes bytes, from 1")
    if read_only and takeover:
        raise InvalidSetting("takeover is for a writer, and the stream is opened with read_only")
    with storage_errors(place.url):
        context = open_context(
            place,
            wal_dir=location(wal_dir, "wal_dir"),
            keys=settings.get("encryption_keys", ""),
            storage=storage,
            clock=clock,
            randomness=randomness,
        )
        logs = ClusterLog(context, namespace, name)
        count = _count(logs, place.url, None if read_only else partitions)
    made = serializer_of(serializer) or MsgpackSerializer()
    nodes = [partition_node(number, count) for number in range(count)]
    close = _nothing if storage is not None else context.store.close
    if read_only:
        readers = [ReadPartition(number, logs, node, made) for number, node in enumerate(nodes)]
        return Stream(place.url, readers, close)
    close()
    opened: list[Partition] = []
    try:
        for number, node in enumerate(nodes):
            of_log = partial(
                _open_log,
                url,
                creates=partitions is not None,
                namespace=namespace,
                cluster=name,
                node=node,
                clock=clock,
                randomness=randomness,
                storage=storage,
                wal_dir=wal_dir,
                storage_options=storage_options,
                **settings,
            )
            opened.append(Partition(number, of_log, made, lock_table_bytes // count, takeover))
    except BaseException:
        for partition in opened:
            partition.close()
        raise
    return Stream(place.url, opened)


def _nothing() -> None:
    pass


def _open_log(url: Place, first: bool, takeover: bool, *, creates: bool, **options: Any) -> Log:
    try:
        return log.open(url, takeover=takeover, **options)
    except NoSuchLog:
        if not (first and creates):
            raise
    return log.create(url, exist_ok=True, **options)


def _count(logs: ClusterLog, url: str, wanted: int | None) -> int:
    """How many partitions the stream has, or will have."""
    if wanted is not None and (type(wanted) is not int or not 1 <= wanted <= PARTITIONS_MAX):
        raise InvalidSetting(f"partitions is {wanted!r}; it takes 1 to {PARTITIONS_MAX}")
    counts = {*map(partition_count, logs.nodes())} - {0}
    if len(counts) > 1:
        raise InvalidSetting(f"{url} has nodes of streams with {sorted(counts)} partitions")
    if counts:
        (count,) = counts
        if wanted not in (None, count):
            raise InvalidSetting(
                f"the stream {logs.cluster!r} in {url} has {count} partitions, not {wanted}; the "
                "number never changes: choose another name for a new stream"
            )
        return count
    if wanted is None:
        raise NoSuchLog(
            f"{url} has no stream {logs.cluster!r} in namespace {logs.namespace!r}; to create it, "
            "say how many partitions it has: imap_wal.stream.open(url, partitions=8)"
        )
    return wanted
