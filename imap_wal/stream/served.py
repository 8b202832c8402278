"""A stream for several processes: one of them has it open and serves it, and the others ask.

    append  ─▶ packed by the author ─▶ checked and appended by the process that serves
    read    ─▶ batches of what is acknowledged, not decoded; consumers run in their own processes
    share   ─▶ every second: how far a consumer is, and which partitions it may apply, if shared
    wait    ─▶ answered when there is a newer transaction

The connections, the election and what happens when the process that serves dies are those of
`imap_wal.workers`. A request with a name counts once, because the log has its name; one without is
not sent again.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Unpack

from imap_wal.checks import check_seconds, location
from imap_wal.clock import Clock, SystemClock, SystemRandomness
from imap_wal.errors import InvalidSetting, StorageUnavailable, WriterLocked
from imap_wal.format import Position
from imap_wal.serializer import MsgpackSerializer, Serializer, SerializerName, serializer_of
from imap_wal.stream.opening import StreamOptions, demand_options
from imap_wal.stream.opening import open as open_stream
from imap_wal.stream.partition import Partition
from imap_wal.stream.progress import (
    CONSUMERS_MAX,
    TEXT_MAX,
    Applied,
    ConsumerProgress,
    ProgressTable,
    StreamProgress,
)
from imap_wal.stream.shares import Shares
from imap_wal.stream.stream import Stream, check_consumer
from imap_wal.stream.transaction import (
    Header,
    Logged,
    Mark,
    StreamRecord,
    Transaction,
    packed,
    record_of,
)
from imap_wal.workers.client import Client
from imap_wal.workers.election import Election
from imap_wal.workers.endpoint import Endpoint, LocalEndpoint, default_path
from imap_wal.workers.messages import PART_BYTES, VERSION, NotUnderstood
from imap_wal.workers.network import TCP, Certificates, NetworkEndpoint
from imap_wal.workers.server import Parts
from imap_wal.write.opening import process_text
from storage_backends.lease import DEFAULT_LEASE_MS
from storage_backends.location import Place

STREAM = "a stream"
"""The kind in a hello."""
BATCH = 1000
"""Transactions in an answer."""
WAIT_S_MAX = 1.0
"""How long one request waits for a newer transaction."""
READS_MAX = 64
"""How many reads are kept open for the next request of a consumer."""
IDLE_S = 10.0
"""A read that was not continued for so long is closed."""
SLOW_S = 1.0
"""A batch that took longer is kept: the client may have stopped waiting, and asks again."""
LATE_MAX = 8
"""How many such batches are kept."""
TIMEOUT_S = 30.0


class ServedStream:
    """An open stream, as `imap_wal.workers.server.Served`."""

    kind = STREAM

    def __init__(self, stream: Stream, partitions: Sequence[Partition], clock: Clock) -> None:
        self._stream, self._partitions, self.url = stream, partitions, stream.url
        self._clock = clock
        self._shares: dict[str, Shares] = {}
        """Of each consumer."""
        self._progress = ProgressTable(len(partitions), clock)
        self.limits = partitions[0].limits
        self._ending = threading.Event()
        self._mutex = threading.Lock()
        self._reads: OrderedDict[Mark, tuple[float, Iterator[Logged | None]]] = OrderedDict()
        """Where it continues → when it was used, and the read."""
        self._late: dict[Mark, list[Any]] = {}
        """Answers that took long, by the mark that was asked for."""

    def lacks(self, acknowledged: Any) -> bool:
        """`acknowledged`: how many partitions the client knows (0: not known yet), and the newest
        mark of each that it was given."""
        try:
            count, newest = acknowledged
            if count and count != len(self._partitions):
                return True
            marks = [_mark(number, at) for number, *at in newest]
            for mark in marks:
                partition = self._partition(mark.partition)
                if not partition.has(mark):
                    partition.prove()  # otherwise it is in the log of the process that has it now
                    return True
            return False
        except (TypeError, ValueError):
            raise NotUnderstood("the first message is not a hello of a stream") from None

    def prepare(self) -> None:
        pass

    @property
    def failure(self) -> Exception | None:
        return next(filter(None, map(_failure_of, self._partitions)), None)

    @property
    def closed(self) -> bool:
        return any(partition.closed for partition in self._partitions)

    def end_waits(self) -> None:
        self._ending.set()
        for partition in self._partitions:
            partition.wake()

    def close(self) -> None:
        with self._mutex:
            self._reads.clear()
        self._stream.close()

    def answer(self, client: bytes, number: int, request: list[Any], parts: Parts) -> Any:
        match request:
            case ["partitions"]:
                return len(self._partitions)
            case ["append", int(of), bytes(value), seen]:
                partition = self._partition(of)
                mark = None if seen is None else _mark(of, seen)
                return partition.append_packed(value, mark, len(self._partitions))
            case ["known", int(of), str(name)]:
                return self._partition(of).known(name)
            case ["mark", int(of)]:
                return self._partition(of).mark
            case ["read", int(of), at]:
                return self._batch(self._partition(of), _mark(of, at))
            case ["wait", int(of), int(after), int() | float() as seconds] if seconds >= 0:
                partition = self._partition(of)
                partition.wait(after, min(seconds, WAIT_S_MAX), self._ending)
                return partition.mark
            case ["archive", int(of)]:
                return self._partition(of).archive()
            case ["share" | "leave", str(consumer), bytes(process), str(name), applied,
                  str(failure), bool(shared)] if len(process) == 16:  # fmt: skip
                reported = self._applied(applied)
                check_consumer(consumer)
                self._progress.note(consumer, process, name, reported, failure)
                leaves = request[0] == "leave"
                if leaves:
                    self._progress.leave(consumer, process)
                if not shared:
                    return []
                shares = self._shares_of(consumer)
                if leaves or failure:  # others apply its partitions
                    shares.leave(process)
                    return []
                return shares.ask(process, [each.partition for each in reported])
            case ["progress"]:
                now = self.progress()
                return now.process, now.newest, [[*asdict(row).values()] for row in now.consumers]
        raise NotUnderstood(f"{request[0]!r} is not a request of version {VERSION}")

    def progress(self) -> StreamProgress:
        """How far the consumers are, as their processes have reported. It waits for nothing."""
        newest = [partition.mark.id for partition in self._partitions]
        return StreamProgress(process_text(), newest, self._progress.consumers(newest))

    def _applied(self, applied: Any) -> list[Applied]:
        """What a process reports of the partitions that it applies."""
        match applied:
            case list() if len(applied) <= len(self._partitions) and all(map(_is_applied, applied)):
                return [Applied(self._partition(of).number, *rest) for of, *rest in applied]
        raise NotUnderstood("the partitions that a consumer applies are not understood")

    def _partition(self, number: Any) -> Partition:
        if type(number) is not int or not 0 <= number < len(self._partitions):
            raise NotUnderstood(f"there is no partition {number!r}")
        partition = self._partitions[number]
        if (failure := _failure_of(partition)) is not None:
            raise failure  # the server closes the connection, and gives up
        return partition

    def _shares_of(self, consumer: str) -> Shares:
        with self._mutex:
            shares = self._shares.get(consumer)
            if shares is None:
                if len(self._shares) >= CONSUMERS_MAX:
                    raise InvalidSetting(f"at most {CONSUMERS_MAX} consumers can be shared")
                shares = Shares(len(self._partitions), self._clock)
                self._shares[consumer] = shares
            return shares

    def _batch(self, partition: Partition, after: Mark) -> list[Any]:
        """The next transactions after a mark. The read is kept open for the next batch."""
        begin = self._clock.monotonic()
        with self._mutex:
            late = self._late.pop(after, None)
            if late is not None:
                return late
            _, read = self._reads.pop(after, (0.0, partition.logged(after)))
            for of in [of for of, (used, _) in self._reads.items() if begin - used > IDLE_S]:
                del self._reads[of]
        answer: list[Any] = []
        size = 0
        for logged in read:
            if logged is None:
                break
            answer.append([logged.id, logged.value, logged.time_ms, str(logged.place)])
            size += len(logged.value)
            if len(answer) >= BATCH or size >= PART_BYTES:
                break
        end = Mark(after.partition, answer[-1][0], answer[-1][3]) if answer else after
        now = self._clock.monotonic()
        with self._mutex:
            self._reads[end] = now, read
            if now - begin > SLOW_S:  # its author may have stopped waiting, and asks again
                self._late[after] = answer
                while len(self._late) > LATE_MAX:
                    self._late.pop(next(iter(self._late)))
            if len(self._reads) > READS_MAX:
                self._reads.popitem(last=False)
        return answer


def _failure_of(partition: Partition) -> Exception | None:
    """Why another process has the log of a partition, or may have it."""
    if partition.replaced is None and (age := partition.lease_age_s) >= DEFAULT_LEASE_MS / 1000:
        return StorageUnavailable(
            f"the lease of partition {partition.number} was not renewed for {age:.0f} s, so "
            "another process may have the log"
        )
    return partition.replaced


def _mark(partition: int, at: Any) -> Mark:
    if isinstance(at, list) and [*map(type, at)] == [int, str] and at[0] >= 0:
        return Mark(partition, *at)
    raise NotUnderstood(f"{at!r} is not a mark")


def _is_applied(applied: Any) -> bool:
    match applied:
        case [int(), int() | None, int(), int()]:
            return all(number is None or 0 <= number < 2**63 for number in applied)
    return False


@dataclass(eq=False)
class StreamClient(Client):
    """Requests about a stream."""

    kind, noun = STREAM, "stream"
    partitions: int = field(default=0, init=False)
    """How many there are; 0: not known yet."""
    _marks: dict[int, Mark] = field(default_factory=dict, init=False)
    """The newest transaction of each partition that was acknowledged to this process. One with a
    position counts more: an older copy may have as many transactions."""

    def acknowledged(self) -> Any:
        return self.partitions, list(self._marks.values())

    def noted(self, client: bytes, number: int, answer: Any) -> Mark:
        mark = Mark(*answer)
        former = self._marks.get(mark.partition)
        if former is None or (mark.id >= former.id and (mark.position or not former.position)):
            self._marks[mark.partition] = mark
        return mark


class RemoteShare:
    """What this process reports of its consumers, and what it may apply."""

    def __init__(self, client: StreamClient, process: bytes) -> None:
        self._client, self._process = client, process

    def ask(
        self, consumer: str, applied: Sequence[Applied], failure: str, *, shared: bool
    ) -> list[int]:
        """The partitions of a shared consumer that this process may apply. Raises the errors of
        `Client.ask`."""
        fields = self._fields(consumer, applied, failure)
        return list(self._client.ask("share", *fields, shared))

    def leave(
        self, consumer: str, applied: Sequence[Applied], failure: str, *, shared: bool
    ) -> None:
        """Other processes need not wait until its lease expires. Raises no error."""
        self._client.tell("leave", *self._fields(consumer, applied, failure), shared)

    def _fields(self, consumer: str, applied: Sequence[Applied], failure: str) -> list[Any]:
        return [consumer, self._process, process_text(), applied, failure[:TEXT_MAX]]

    def progress(self) -> StreamProgress:
        """Raises the errors of `Client.ask`."""
        process, newest, rows = self._client.ask("progress")
        return StreamProgress(process, newest, [ConsumerProgress(*row) for row in rows])


class RemotePartition:
    """One partition of a stream that another process serves. Thread-safe. Methods do what those of
    `Partition` do; all of them raise the errors of `Client.ask` too."""

    def __init__(self, number: int, client: StreamClient, serializer: Serializer[Any, Any]) -> None:
        self.number, self._client, self._serializer = number, client, serializer

    def append(
        self, header: Header, transaction: Transaction, seen: Mark | None, request: str = ""
    ) -> Mark:
        value = packed(header, transaction, request, self._serializer)
        at = None if seen is None else seen[1:]
        appended: Mark = self._client.ask(
            "append", self.number, value, at, changes=True, once=not request
        )
        return appended

    def known(self, request: str) -> Mark | None:
        mark = self._client.ask("known", self.number, request)
        return None if mark is None else Mark(*mark)

    @property
    def mark(self) -> Mark:
        return Mark(*self._client.ask("mark", self.number))

    def records(self, after: Mark) -> Iterator[StreamRecord | None]:
        while True:
            batch = self._client.ask("read", self.number, after[1:])
            for id, value, time_ms, position in batch:
                logged = Logged(self.number, id, value, time_ms, Position.parse(position))
                yield record_of(logged, self._serializer)
            if batch:
                after = Mark(self.number, batch[-1][0], batch[-1][3])
            else:
                yield None

    def wait(self, after: int, seconds: float, stop: threading.Event) -> None:
        if not stop.is_set():
            self._client.ask("wait", self.number, after, min(seconds, self._client.timeout_s / 2))

    def wake(self) -> None:
        """The stream is being closed: requests of all partitions end."""
        self._client.end()

    def archive(self) -> int:
        return int(self._client.ask("archive", self.number))

    @property
    def closed(self) -> bool:
        return self._client.openness.closed

    def close(self) -> None:
        """`Stream.close` closes the client."""


def serving_stream(url: Place, endpoint: Endpoint, **options: Any) -> Election:
    """The election of the process that serves the stream of a URL. `options`: of `open`."""

    def open() -> ServedStream:
        try:
            stream = open_stream(url, **options)
        except WriterLocked as error:
            advice = (
                "connect to the server at tcp://, if it is one; let a program use "
                "imap_wal.stream.connect in place of open; or stop it"
            )
            raise WriterLocked(error.node, error.holder, advice) from None
        return ServedStream(stream, stream.writing, clock)

    clock = options.get("clock") or SystemClock()
    return Election(url, endpoint, clock, open)


def endpoint_of(
    url: Place, namespace: str, name: str, socket: str | os.PathLike[str] | None = None
) -> Endpoint:
    """Where a stream is served. Raises `InvalidSetting`."""
    return LocalEndpoint(socket or default_path(url, namespace, f"stream {name}"))


class StreamConnectOptions(StreamOptions, total=False):
    """The keyword arguments of `connect`, for functions that pass them on."""

    partitions: int | None
    name: str
    namespace: str
    serializer: Serializer[Any, Any] | SerializerName | None
    socket: str | os.PathLike[str] | None
    serve: bool
    certificates: Certificates | None
    timeout_s: float


def connect(
    url: Place,
    *,
    partitions: int | None = None,
    name: str = "stream",
    namespace: str = "default",
    serializer: Serializer[Any, Any] | SerializerName | None = None,
    socket: str | os.PathLike[str] | None = None,
    serve: bool = True,
    certificates: Certificates | None = None,
    timeout_s: float = TIMEOUT_S,
    **options: Unpack[StreamOptions],
) -> Stream:
    """A stream that several processes use at the same time: each of them can submit, read, and run
    consumers. On one machine, one of them has the log open and serves the others over a Unix
    socket; if it ends or is killed, another one takes its place. On other machines,
    `imap-wal stream serve --listen` serves them.

    Args:
        url: a folder or URL, the same in all processes; or `tcp://host:port` of a server, or
            `tcp://host:port,host:port` of several, one of which serves at a time.
        partitions: as for `open`.
        name: as for `open`.
        namespace: as for `open`.
        serializer: as for `open`. The process that serves does not use it.
        socket: the path of the socket; None: in a folder of this user for temporary files, derived
            from `url`, `namespace` and `name`.
        serve: this process may serve. With False it waits for another one, such as
            `imap-wal stream serve`.
        certificates: for `tcp://`: of this process, and the authority of the servers. Not needed
            for an address of this machine whose server has none.
        timeout_s: how long one message to the process that serves may take, with all its
            repetitions, in seconds.
        **options: other options of `open`, for the process that serves; the same in all processes.
            With `tcp://`, there are none: the server decides, also about `name` and `namespace`.

    Returns:
        The stream. A submit with `request` is repeated if the connection is lost, and counts once.
        One without `request` may end with `OutcomeUnknown`.

    Raises:
        InvalidSetting: an option is not valid, or other users can write to the folder of the
            socket.
        NotAllowed: the server does not admit this certificate, or has one of another authority.
        WriterLocked: another program has the stream open, and does not serve it.
        StorageUnavailable: no process answered in time.
        Others: those of `open`, from a process that could not open the stream.
    """
    if not isinstance(serve, bool):
        raise InvalidSetting(f"serve is {serve!r}; it takes True or False")
    check_seconds(timeout_s, "timeout_s")
    made = serializer_of(serializer) or MsgpackSerializer()
    if isinstance(url, str) and url.startswith(TCP):
        passed = {"name": name != "stream", "namespace": namespace != "default", "socket": socket}
        for option in [*options, *(option for option, is_passed in passed.items() if is_passed)]:
            raise InvalidSetting(f"{option} is decided by the server at {url}; leave it out")
        client = StreamClient(
            NetworkEndpoint(url, certificates),
            timeout_s,
            timeout_s,
            lambda: False,
            SystemRandomness(),
        )
        return _connected(url, client, lambda: None, made, partitions)
    if certificates is not None:
        raise InvalidSetting("certificates are for tcp:// addresses")
    place = location(url, options=options.get("storage_options"))
    if place.url.startswith("memory:"):
        raise InvalidSetting(
            "other processes cannot see a memory:// storage; pass a folder or another URL"
        )
    for option in ("read_only", "storage", "takeover"):
        if option in options:
            raise InvalidSetting(f"{option} is an option of imap_wal.stream.open, not of connect")
    demand_options(options)
    endpoint = endpoint_of(url, namespace, name, socket)
    serving = serving_stream(
        url, endpoint, partitions=partitions, name=name, namespace=namespace, **options
    )
    client = StreamClient(
        endpoint,
        timeout_s,
        serving.patience_s(timeout_s),
        serving.elect if serve else lambda: False,
        options.get("randomness") or SystemRandomness(),
    )
    return _connected(place.url, client, serving.stop, made, partitions)


def _connected(
    url: str,
    client: StreamClient,
    at_end: Callable[[], object],
    serializer: Serializer[Any, Any],
    partitions: int | None,
) -> Stream:
    """Raises the errors of `connect`."""

    def end() -> None:
        client.close()
        at_end()

    try:
        count = client.partitions = client.ask("partitions")
        if partitions not in (None, count):
            raise InvalidSetting(f"the stream has {count} partitions, not {partitions}")
    except BaseException:
        with suppress(Exception):
            end()
        raise
    remote = [RemotePartition(number, client, serializer) for number in range(count)]
    return Stream(url, remote, end, RemoteShare(client, client.randomness.token()))
