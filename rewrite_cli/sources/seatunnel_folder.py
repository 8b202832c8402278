"""Reads a folder of Apache SeaTunnel's `imap-storage-file`:

    {namespace}/{cluster}/{map}/{start}/wal.txt       in a bucket: 1_wal.txt, 2_wal.txt

Each start of a server adds a folder, whose name is a number. The newest change of a key is the one
with the highest timestamp; of those of one millisecond the last one, as SeaTunnel reads them. All
files are read once for the places of the newest values, and then only these values.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import NamedTuple

from imap_wal import seatunnel
from imap_wal.decoder import Opaque
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed, opening
from rewrite_cli.console.progress import Reached, Tell
from rewrite_cli.sources.newest_changes import NewestChanges
from rewrite_cli.sources.open_files import writer_of
from rewrite_cli.sources.seatunnel_record import Damaged, StoredChange, changes, next_place
from rewrite_cli.sources.source import Changes, Source, Stored, Torn, Unreadable
from storage_backends import SegmentStore, StorageError, StoredFile, open_store, with_url
from storage_backends.location import Location
from storage_backends.paths import local_folder

END = "wal.txt"
_PATH = re.compile(r"(?:.*/)?([^/]+)/([^/]+)/(-?\d+)/(?:(\d+)_)?wal\.txt")
TOLD_EVERY = 10_000


class _File(NamedTuple):
    map: str
    cluster: str
    start: int
    number: int
    stored: StoredFile


class SeatunnelFolder(Source):
    """`place`: the folder of a cluster, or one below or above it with one cluster."""

    def __init__(self, place: Location, name: str, tell: Tell) -> None:
        self._place, self._tell = place, tell
        with opening(place):
            self._store: SegmentStore = open_store(place)
        self._newest = NewestChanges()
        with self._reading():
            self._files = self._listed()
        self._demand_one_cluster()
        self.bytes = sum(file.stored.size for file in self._files)
        names = {file.map for file in self._files}
        if name and names != {name}:
            raise Failed(
                f"--map: {place} has {out.names(sorted(names))}; a map keeps its name, by which "
                "SeaTunnel finds it. To import one map, name its folder"
            )
        self._counts: Counter[str] = Counter()
        self._done = 0

    def maps(self) -> list[str]:
        return sorted({file.map for file in self._files})

    def entries(self) -> Iterator[Stored]:
        self._demand_no_writer()
        for number in range(len(self._files)) if not self.changes else ():  # read once
            yield from self._read(number)
        with self._reading():
            if self._listed() != self._files:
                raise self._changing("its files change")
            deleted = self._newest.deleted()
        self.changes = {
            name: Changes(self._counts[name], deleted.get(name, 0)) for name in self.maps()
        }
        yield from self._live()

    def close(self) -> None:
        self._newest.close()
        self._store.close()

    # ---- which files ----

    def _listed(self) -> list[_File]:
        """In the order in which they were written, as far as their names show it."""
        above = local_folder(self._place.url) or self._place.url.partition("?")[0].rstrip("/")
        files = []
        for stored in self._store.list(""):
            if not stored.path.endswith(END):
                continue
            matched = _PATH.fullmatch(f"{above}/{stored.path}")
            if matched is None or "/" not in stored.path:
                raise Failed(
                    f"{self._place}: {stored.path} is not where imap-storage-file writes it, "
                    f"{{cluster}}/{{map}}/{{start}}/{END}: name the folder of the cluster"
                )
            cluster, name, start, number = matched.groups()
            files.append(_File(name, cluster, int(start), int(number or 0), stored))
        return sorted(files, key=lambda file: (file[:4], file.stored.path))

    def _demand_one_cluster(self) -> None:
        if not self._files:
            raise Failed(
                f"{self._place} is not a folder of SeaTunnel's imap-storage-file: it has no {END}. "
                "Name the folder {namespace}/{clusterName} of its settings"
            )
        clusters = sorted({file.cluster for file in self._files})
        if len(clusters) > 1:
            raise Failed(
                f"{self._place} has the files of several clusters: {out.names(clusters)}; name the "
                "folder of one of them"
            )

    def _demand_no_writer(self) -> None:
        folder = local_folder(self._place.url)
        paths = [f"{folder}/{file.stored.path}" for file in self._files] if folder else []
        with self._reading():
            process = writer_of(paths)
        if process:
            raise self._changing(f"process {process} has one of its files open for writing")

    def _changing(self, problem: str) -> Failed:
        return Failed(
            f"{self._place}: {problem}, so a server of SeaTunnel runs; nothing was imported: stop "
            "all of its servers, and repeat the import"
        )

    # ---- the newest change of each key ----

    def _read(self, number: int) -> Iterator[Stored]:
        """Take the changes of a file. Returns what is damaged, as entries to refuse."""
        file, size = self._files[number], self._files[number].stored.size
        place: int | None = 0
        with self._reading(), closing(self._store.open_input(file.stored.path)) as data:
            while place is not None:
                try:
                    self._take(number, changes(data, size, place))
                    break
                except Damaged as error:
                    place = next_place(data, error.position)
                    left = (size if place is None else place) - error.position
                    if error.torn and place is None:
                        self.torn = (*self.torn, Torn(file.stored.path, error.position, left))
                    else:
                        yield _refused(file, error, left)
        self._done += size

    def _take(self, number: int, read: Iterator[tuple[int, StoredChange]]) -> None:
        name = self._files[number].map
        for position, change in read:
            key = seatunnel.form_of(change.key_class, change.key)
            self._newest.add(name, key, number, position, change)
            self._counts[name] += 1
            if not self._counts[name] % TOLD_EVERY:
                count = out.count(self._counts.total(), "change")
                done = self._done + position
                self._tell(Reached(f"reading {count}", done, self.bytes, "changes"))

    def _live(self) -> Iterator[Stored]:
        """The newest value of each key that is not deleted."""
        with ExitStack() as stack, self._reading():
            opened, data = -1, None
            for name, key, label, number, value_class, at, size in self._newest.live():
                if number != opened or data is None:
                    stack.close()
                    data = stack.enter_context(
                        closing(self._store.open_input(self._files[number].stored.path))
                    )
                    opened = number
                data.seek(at)
                value = data.read(size)
                if len(value) != size:
                    raise self._changing("its files change")
                yield Stored(
                    name,
                    _shown(key, label),
                    partial(bytes, key),
                    partial(seatunnel.form_of, value_class, value),
                    0,
                    classes=(label, value_class),
                )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raises `Failed` for errors of the storage and of scratch."""
        try:
            yield
        except (StorageError, OSError) as error:
            raise Failed(f"{with_url(self._place, error)}; nothing was imported") from error
        except sqlite3.Error as error:
            raise Failed(
                f"scratch in the temporary folder cannot be used: {error}; nothing was imported: "
                "set TMPDIR to a folder with more room"
            ) from error


def _refused(file: _File, error: Damaged, left: int) -> Stored:
    def refuse() -> bytes:
        raise Unreadable(
            f"damaged at byte {error.position}: {error}; {out.count(left, 'byte')} from there on "
            "are not read"
        )

    return Stored(file.map, file.stored.path, refuse, refuse, 0)


def _shown(key: bytes, label: str) -> object:
    if seatunnel.is_simple(key, label):
        try:
            return seatunnel.load(key, label)
        except ValueError:
            pass
    return str(Opaque(label, key))
