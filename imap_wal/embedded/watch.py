"""The changes of one map in the order of the log: `DurableMap.watch`.

    since     a position ─▶ what the map had there, read from the log (`_former`)
              None       ─▶ a copy of what it has now
    events    the log from there on ─▶ entries of the map ─▶ old values from the copy ─▶ the program

Nothing is kept for a slow program but its copy of the map: the log keeps the changes. So a
compaction may remove what it has not read; it then gets `PositionGone`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from imap_wal.embedded.changes import MapState
from imap_wal.embedded.map_writer import MapWriter
from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, DataEntry, is_clear
from imap_wal.errors import InvalidSetting, PositionGone
from imap_wal.forked import OfOneProcess
from imap_wal.format import END, Position
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.log_reader import Bound, LogReader, Record, storage_errors
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans
from imap_wal.retention.history import at_positions
from imap_wal.write.node_log import NodeLog
from imap_wal.write.ring import CommitSignal
from storage_backends import NotFound

if TYPE_CHECKING:
    import asyncio

EVENTS_MAX = 256
"""How many events are decoded at a time."""
LOOK_S = 1.0
"""How often a watch looks whether its store still works, in seconds."""


class Event(NamedTuple):
    """A change of one key. `old`: the value before; None if there was none. `new`: the value after;
    None if the key was deleted. `kind`: whether the key was added, replaced or deleted.
    `position`: pass it to `watch` to continue after this event."""

    key: Any
    old: Any
    new: Any
    kind: Literal["add", "replace", "delete"]
    position: Position


class Watch(OfOneProcess, Iterator[Event]):
    """The changes of a map, from `DurableMap.watch`. For one thread; `close` may be called by any.

    The expiry of a key is not a change in the log, so it has no event. If the key is set again, the
    event has `old=None`. `touch` has an event with the same value twice.
    """

    def __init__(self, writer: MapWriter, state: MapState, since: Position | str | None) -> None:
        if not state.logged:
            raise InvalidSetting(
                f"map {state.name!r} was opened with disable_wal, so its changes are not in a log"
            )
        writer.check_open()
        log = writer.log
        self._writer, self._name = writer, state.name
        self._serializer = state.serializer
        self._stop = threading.Event()
        self._events: deque[Event] = deque()
        context = log.context.context.on(log.recent.over(log.store))
        logs = ClusterLog(context, log.identity.namespace, log.identity.cluster)
        if since is None:
            begin, self._before = writer.at_rest(state)
            self.position = log.marked(begin)
        else:
            if not isinstance(since, str | Position):
                raise TypeError(f"since is {since!r}; it takes a position, or its text")
            self.position = Position.parse(since) if isinstance(since, str) else since
            self._before = _former(logs, log, state, self.position)
        self._read_to = self.position
        self._error: Exception | None = None
        reader = LogReader.of(logs, log.identity.node, bound=_Acknowledged(writer.signal))
        self._news = self._decoded(reader.follow(self.position.after()))

    position: Position
    """The place in the log up to which this watch has returned everything. `watch(since=position)`
    continues there. It also passes changes of other maps, so it is later than the position of the
    last event."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while not self._events:
            seen = self._writer.signal.position
            if not self.read():
                raise StopIteration
            if not self._events:
                self._writer.signal.wait(seen, LOOK_S, self._stop)
        return self.next_ready()

    @property
    def ready(self) -> bool:
        """Whether an event was read that was not returned yet."""
        return bool(self._events)

    def next_ready(self) -> Event:
        """The next event that was read. Raises IndexError if there is none."""
        event = self._events.popleft()
        self.position = event.position if self._events else max(event.position, self._read_to)
        return event

    def read(self) -> bool:
        """Read some events, without waiting. Returns False at the end: the store was closed, or
        `close` was called."""
        self._writer.openness.check_process()
        signal, failure = self._writer.signal, self._writer.failure
        if self._stop.is_set() or signal.ended:
            return False
        if self._error is None:
            try:
                for event in iter(self._news.__next__, None):
                    self._events.append(event)
                    if len(self._events) >= EVENTS_MAX:
                        return True
            except Exception as caught:  # noqa: BLE001  # raised after the events before it
                if self._writer.closed:  # the storage was closed meanwhile
                    return False
                self._error = caught
        if not self._events:
            self.position = self._read_to
            if (error := self._error or failure) is not None:
                if self._error is None and self._writer.closed:
                    return False  # `failure` may be the committer's, which is closed before `end`
                self._stop.set()
                raise error
        return True

    def close(self) -> None:
        """End the iteration, also in another thread that waits for the next event."""
        self._stop.set()
        self._writer.signal.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decoded(self, records: Iterator[Record | None]) -> Iterator[Event | None]:
        """The events of the records. None: there is no further one now."""
        for record in records:
            if record is None:
                yield None
                continue
            if record.entry.map == self._name:
                yield from self._changed(record.position, record.entry)
            self._read_to = record.position

    def _changed(self, position: Position, entry: DataEntry) -> Iterator[Event]:
        before, now = self._before, entry.timestamp_ms
        load, load_key = self._serializer.load, self._serializer.load_key
        before.purge(now)
        if is_clear(entry):
            keys, values = before.rows(now)
            before.replay([entry], now)
            for left, key, value in zip(range(len(keys))[::-1], keys, values, strict=True):
                # Whoever continues after one of these events, gets all of them again.
                place = self._read_to if left else position
                yield Event(load_key(key), load(value), None, "delete", place)
            return
        old, new = before.get(entry.key, now), entry.value
        before.set(entry.key, new, entry.expires_at_ms)
        if old is None and new is None:
            return
        yield Event(
            load_key(entry.key),
            None if old is None else load(old),
            None if new is None else load(new),
            "add" if old is None else "delete" if new is None else "replace",
            position,
        )


class AsyncWatch:
    """The changes of a map, from `AsyncMap.watch`; see `Watch`. For one task at a time. It begins
    when it is awaited, or with the first event: `watch = await orders.watch()`, and then `async for
    event in watch`."""

    def __init__(self, begin: Callable[[], Watch], signal: CommitSignal) -> None:
        self._begin, self._signal = begin, signal
        self._watch: Watch | None = None
        self._reading: asyncio.Future[Watch | None] | None = None
        self._closed = False

    @property
    def position(self) -> Position | None:
        """As `Watch.position`; None before it has begun."""
        return None if self._watch is None else self._watch.position

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._read().__await__()
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while self._watch is None or not self._watch.ready:
            seen = self._signal.position
            if not await self._read():
                raise StopAsyncIteration
            if self._watch is not None and not self._watch.ready:
                await self._signal.wait_async(seen, LOOK_S)
        return self._watch.next_ready()

    async def _read(self) -> bool:
        """Read in another thread. If this task is cancelled, the next call continues. Returns False
        at the end."""
        import asyncio

        if self._reading is None:
            if self._closed:
                return False
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._read_now)
        try:
            self._watch = await asyncio.shield(self._reading)
        finally:
            if self._reading.done():
                self._reading = None
        return self._watch is not None

    def _read_now(self) -> Watch | None:
        watch = self._watch or self._begin()
        return watch if watch.read() else None

    def close(self) -> None:
        """End the iteration, also in another task that waits for the next event."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()


class _Acknowledged(Bound):
    """Limits a watch to acknowledged changes."""

    def __init__(self, signal: CommitSignal) -> None:
        self._signal = signal

    def limit(self) -> Position | None:
        return self._signal.position


def _former(logs: ClusterLog, log: NodeLog, state: MapState, position: Position) -> MapState:
    """What the map had at a position of this log. Raises `PositionGone` if that is not known any
    more, and `OtherHistory`."""
    place = log.demand(position)
    with storage_errors(f"reading what map {state.name!r} had at {position}"):
        for attempt in range(ATTEMPTS):
            try:
                return _read_former(logs, log, state, place)
            except NotFound as error:  # compacted meanwhile
                if attempt == ATTEMPTS - 1:
                    raise logs.lost(error) from error
    raise AssertionError("unreachable")


def _read_former(logs: ClusterLog, log: NodeLog, state: MapState, place: Position) -> MapState:
    name, node, settings = state.name, log.identity.node, log.settings
    now = logs.state().demand(settings.recovery_policy)
    places = {**dict.fromkeys(now.nodes, END), node: place}
    past = at_positions(logs, now, places, (name,))
    if past.unknown:
        oldest = now.manifest.snapshots[name].marks[node].position
        raise PositionGone(str(log.marked(place)), str(log.marked(oldest)))
    index = NewestIndex(settings.restore_memory_bytes, settings.scratch)
    for scan, context in ahead(
        logs.context, cluster_scans(past.state, until=places, maps=(name,), metadata=False)
    ):
        for changes in logs.read_on(scan, (name,), context=context, positions=True):
            rows = changes.rows
            if scan.node == node and changes.last > place and changes.positions is not None:
                # A scan ends after a whole frame.
                rows = list(compress(rows, [position <= place for position in changes.positions]))
            index.add(changes.node, rows, changes.bytes, clears=changes.clears)
    former = MapState(name, state.serializer)
    for rows in index.batches(name):
        for row in rows:
            former.set(row[KEY], row[VALUE], row[EXPIRES_AT_MS])
    return former
