"""Where a consumer stores how far it is. Where the mark is stored together with what the consumer
changes, each transaction counts once; elsewhere it may be applied again after a crash."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

from imap_wal.checks import location
from imap_wal.clock import Clock, Randomness
from imap_wal.context import open_context
from imap_wal.embedded.store import Store
from imap_wal.embedded.transaction import Transaction as MapTransaction
from imap_wal.errors import LostRace
from imap_wal.manifest.store import FORMAT, ManifestLog, Whole, checked, fields_of, require
from imap_wal.read.log_reader import storage_errors
from imap_wal.stream.transaction import Mark, StreamRecord
from storage_backends import SegmentStore


class StreamView:
    """What a transaction is built from: all transactions up to `mark` are in it, perhaps newer
    ones too."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark


class Marks(Protocol):
    """A consumer's marks, by partition. Thread-safe."""

    def load(self, consumer: str, partition: int) -> Mark:
        """The mark of the last transaction that was applied."""
        ...

    def apply(
        self,
        consumer: str,
        before: Mark,
        records: Sequence[StreamRecord],
        function: Callable[..., object],
    ) -> None:
        """Call `function` for each of at least one record, and replace the mark `before` by that of
        the last. If it raises an error, the mark stays. Raises `LostRace` if the mark is not
        `before`: another process applies this partition."""
        ...

    def view(self, consumer: str, partition: int) -> Any:
        """A context manager with a `StreamView`, whose mark was read before anything else."""
        ...


@dataclass(frozen=True, slots=True)
class _MarkManifest:
    """The marks of one consumer: partition → id and position."""

    format: ClassVar[int] = FORMAT

    marks: Mapping[str, tuple[Whole, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        require(data, "marks")
        return checked(data, cls)


class FileMarks:
    """Marks in files of a folder or URL. `function` gets the record. After a crash, the last
    transactions may be applied again: use it only for work that may be repeated.

    Args:
        url: a folder or URL, of this consumer or of several.
        storage_options: as for `imap_wal.open`.
        clock: for tests.
        randomness: for tests.
        storage: an open storage, instead of the one that `url` names.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        storage: SegmentStore | None = None,
    ) -> None:
        place = location(url, options=storage_options)
        with storage_errors(place.url):
            self._context = open_context(place, storage=storage, clock=clock, randomness=randomness)
        self._mutex = threading.Lock()
        self._opened: dict[str, ManifestLog[_MarkManifest]] = {}

    def load(self, consumer: str, partition: int) -> Mark:
        with self._mutex, storage_errors(f"marks of consumer {consumer!r}"):
            stored = self._manifests(consumer).read()[1].marks.get(str(partition), ())
            return Mark(partition, *stored)

    def apply(
        self,
        consumer: str,
        before: Mark,
        records: Sequence[StreamRecord],
        function: Callable[[StreamRecord], object],
    ) -> None:
        for record in records:
            function(record)
        partition, last = str(before.partition), records[-1].mark

        def change(manifest: _MarkManifest) -> _MarkManifest:
            present = Mark(before.partition, *manifest.marks.get(partition, ()))
            demand_same(consumer, before, present)
            return _MarkManifest({**manifest.marks, partition: (last.id, last.position)})

        with self._mutex, storage_errors(f"marks of consumer {consumer!r}"):
            self._manifests(consumer).update(change)

    @contextmanager
    def view(self, consumer: str, partition: int) -> Iterator[StreamView]:
        yield StreamView(self.load(consumer, partition))

    def close(self) -> None:
        """Close connections."""
        self._context.store.close()

    def _manifests(self, consumer: str) -> ManifestLog[_MarkManifest]:
        if consumer not in self._opened:
            context = self._context
            self._opened[consumer] = ManifestLog(
                context.store,
                f"consumers/{consumer}",
                _MarkManifest,
                _MarkManifest(),
                context.clock,
                context.randomness,
            )
        return self._opened[consumer]


class MapView(StreamView):
    """`store`: that of the consumer."""

    def __init__(self, mark: Mark, store: Store) -> None:
        super().__init__(mark)
        self.store = store


class MapMarks:
    """Marks in a map of an open store. `function` gets the record and a transaction of the store;
    what it changes there is committed together with the mark."""

    def __init__(self, store: Store, name: str = "imap-wal.marks") -> None:
        self._store, self._map = store, store.map(name, serializer="msgpack")

    def load(self, consumer: str, partition: int) -> Mark:
        return _mark(partition, self._map.get((consumer, partition)))

    def apply(
        self,
        consumer: str,
        before: Mark,
        records: Sequence[StreamRecord],
        function: Callable[[StreamRecord, MapTransaction], object],
    ) -> None:
        key = consumer, before.partition

        @self._store.transaction
        def run(transaction: MapTransaction) -> None:
            marks = transaction[self._map]
            demand_same(consumer, before, _mark(before.partition, marks.get(key)))
            for record in records:
                function(record, transaction)
            last = records[-1].mark
            marks[key] = [last.id, last.position]

        run()

    @contextmanager
    def view(self, consumer: str, partition: int) -> Iterator[MapView]:
        yield MapView(self.load(consumer, partition), self._store)


def _mark(partition: int, stored: Sequence[Any] | None) -> Mark:
    return Mark(partition, *(stored or ()))


def demand_same(consumer: str, before: Mark, present: Mark) -> None:
    """Raises `LostRace` unless the mark is the one that this process has stored."""
    if present.id != before.id:
        raise LostRace(
            f"consumer {consumer!r} is at transaction {present.id} of partition "
            f"{before.partition}, not at {before.id}: another process applies it too, or another "
            "stream has a consumer of this name"
        )
