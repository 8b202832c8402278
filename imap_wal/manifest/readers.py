"""Readers that follow a log from outside: how far each one has read, and what is kept for it. What
a reader has not read is not removed, even if a snapshot covers it.

A reader publishes its positions in numbered manifests of its own, in `readers/{name}/`. They only
grow, unless the reader begins again. So a removal that used an older position of the reader has
removed less than it could.

A reader that needs what maps had before its next batch also names a *base*: snapshots that may have
been replaced since, and the log above them. It moves from one base to a newer one in this order:

    propose    both bases are kept
    look       are the snapshots of the new base still those of the cluster's manifest?
    advance    only the new base is kept

A removal reads the cluster's manifest before the manifests of readers. If it found one in which a
snapshot was replaced, the snapshot was replaced after the look, so the removal also found the
proposal, and keeps the files.

One race is left, when a reader begins at a position that needs *former* snapshots. They were
replaced before the look, so a removal that read the readers before the proposal deletes them, or
the log above them. The same removal may raise `NodeManifest.removed` above a first base of current
snapshots. A process that uses a base first checks whether it is whole. If it is not, a newer one is
made from the current snapshots, if they cover nothing that the reader has not read. Otherwise the
reader gets an error and begins again. It never gets a wrong state.

The reader `HISTORY` is the log's own: it keeps what reads of former moments need
(`imap_wal.retention.history`). It has bases only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from shlex import quote
from typing import TypeAlias

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, InvalidSetting, LogError
from imap_wal.format import START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.list_files import ListFile
from imap_wal.manifest.reader_manifest import Base, ReaderManifest, ReaderManifestLog
from imap_wal.names import decode, encode
from storage_backends import NotFound, SegmentStore

HISTORY = "history"
ATTEMPTS = 8

Change: TypeAlias = Callable[[tuple[Base, ...]], tuple[Base, ...]]
"""What a reader keeps from now on, of what it kept before; oldest first."""


def forget_command(*names: str) -> str:
    """What ends the protection of what these readers need, as words for a shell."""
    return " ".join(["imap-wal prune", *(f"--forget-reader {quote(name)}" for name in names)])


def with_base(new: Base) -> Change:
    return lambda bases: bases if new in bases else (*bases, new)


def without_bases(gone: Collection[Base]) -> Change:
    return lambda bases: tuple(base for base in bases if base not in gone)


def readers_of(
    store: SegmentStore, cluster_folder: str, forgotten: Collection[str] = ()
) -> dict[str, ReaderManifest]:
    """Name → the state of every reader for which something is kept, as if those of `forgotten` were
    forgotten."""
    readers = {}
    for name in _names(store, cluster_folder):
        if name in forgotten:
            continue
        number, reader = _read(store, cluster_folder, name)
        if number and not reader.forgotten:
            readers[name] = reader
    return readers


def examined(
    store: SegmentStore, cluster_folder: str
) -> tuple[dict[str, ReaderManifest], dict[str, LogError]]:
    """`readers_of`, without those that are damaged; and name → what is damaged, of every reader
    whose newest manifest cannot be read, or a list that it names. Nothing is removed from the log
    until such a reader is forgotten."""
    sound: dict[str, ReaderManifest] = {}
    damaged: dict[str, LogError] = {}
    for name in _names(store, cluster_folder):
        try:
            number, reader = _read(store, cluster_folder, name)
        except CorruptLog as error:
            damaged[name] = error
            continue
        wrong: list[tuple[ListFile, LogError]] = []
        for base in reader.bases:
            for snapshot in base.snapshots.values():
                with suppress(NotFound):  # the reader has other lists now
                    snapshot.files.readable(wrong)
        if wrong:
            damaged[name] = _with_advice(wrong[0][1], name)
        elif number and not reader.forgotten:
            sound[name] = reader
    return sound, damaged


def _names(store: SegmentStore, cluster_folder: str) -> list[str]:
    return [decode(folder) for folder in store.folders(layout.readers_folder(cluster_folder))]


def _read(store: SegmentStore, cluster_folder: str, name: str) -> tuple[int, ReaderManifest]:
    try:
        return _manifests(Context(store), cluster_folder, name).read()
    except CorruptLog as error:
        raise _with_advice(error, name) from error


def _with_advice(error: LogError, name: str) -> CorruptLog:
    return CorruptLog(
        error.file,
        error.offset,
        error.what,
        f"bring it back from a copy; or run `{forget_command(name)}`: nothing is then kept for "
        "this reader",
    )


def read_by_all(
    store: SegmentStore,
    cluster_folder: str,
    node: str,
    end: Position,
    forgotten: Collection[str] = (),
) -> Position:
    """The position up to which no reader needs a node's entries; `end` without readers.
    `forgotten`: as in `readers_of`."""
    readers = readers_of(store, cluster_folder, forgotten).values()
    return min((reader.kept_above(node) for reader in readers), default=end)


def kept_files(
    store: SegmentStore,
    cluster_folder: str,
    manifest: ClusterManifest,
    forgotten: Collection[str] = (),
    attempts: int = ATTEMPTS,
) -> set[str]:
    """The snapshot files that a reader needs. `manifest`: the cluster's, read before this call.
    `forgotten`: as in `readers_of`."""
    try:
        return {
            path
            for reader in readers_of(store, cluster_folder, forgotten).values()
            for path, _ in reader.kept_files(manifest)
        }
    except NotFound:  # a reader published or was forgotten meanwhile, so its lists are deleted
        if not attempts:
            raise
    return kept_files(store, cluster_folder, manifest, forgotten, attempts - 1)


def bases_of_history(store: SegmentStore, cluster_folder: str) -> tuple[Base, ...]:
    """The bases of `HISTORY`, oldest first; () without a history."""
    return tuple(_read(store, cluster_folder, HISTORY)[1].bases)


class Reader:
    """How far one reader has read, in its manifests."""

    def __init__(self, context: Context, cluster_folder: str, name: str) -> None:
        self._name, self._clock = name, context.clock
        self._manifests = _manifests(context, cluster_folder, name)

    def begin(self, positions: Mapping[str, Position]) -> None:
        """Register the reader, or let it begin again, without a base. Nothing changes if it is
        registered at these positions: Spark asks several times where a query begins. What it wants
        to read may have been removed before, so it has to check that after this call."""
        new = ReaderManifest(dict(positions), self._clock.now_ms())

        def change(reader: ReaderManifest) -> ReaderManifest:
            is_here = reader.updated_ms and not reader.forgotten
            return reader if is_here and reader.positions == new.positions else new

        self._manifests.update(change)

    def read(self) -> ReaderManifest:
        """What is registered. Raises `InvalidSetting` if the reader was forgotten."""
        return self._demand(self._manifests.read()[1])

    def propose(self, base: Base | None) -> None:
        """Keep the files of another base too. Raises `InvalidSetting` if the reader was
        forgotten."""
        self._manifests.update(lambda reader: replace(self._demand(reader), proposed=base))

    def advance(
        self,
        positions: Mapping[str, Position],
        base: Base | None = None,
        proposed: Base | None = None,
    ) -> None:
        """Publish how far the reader has read, and what is kept for it besides the log above. A
        lower position than before changes nothing. Raises `InvalidSetting` if the reader was
        forgotten."""

        def change(reader: ReaderManifest) -> ReaderManifest:
            self._demand(reader)
            farther = {
                node: max(position, reader.positions.get(node, START))
                for node, position in positions.items()
            }
            new = replace(
                reader,
                positions={**reader.positions, **farther},
                base=base,
                proposed=proposed,
            )
            if reader.updated_ms and new == reader:
                return reader
            return replace(new, updated_ms=self._clock.now_ms())

        self._manifests.update(change)

    def keep(self, change: Change, same_ms: int, *, files_only: bool = False) -> tuple[Base, ...]:
        """Of a reader that has bases only, such as `HISTORY`: keep the bases that `change` makes of
        the present ones. It gets and returns them oldest first, and may run several times. The
        reader is registered if there are any; otherwise it is forgotten. If nothing changes, this
        is published again after `same_ms`. `files_only`: no log above them is kept. Returns what is
        kept."""

        def published(reader: ReaderManifest) -> ReaderManifest | None:
            now_ms = self._clock.now_ms()
            bases = change(tuple(reader.bases))
            if not bases:  # registered without a base, it would keep the whole log
                gone = ReaderManifest(reader.positions, now_ms, forgotten=True)
                return gone if reader.updated_ms and not reader.forgotten else None
            new = ReaderManifest(
                positions=bases[0].positions,
                updated_ms=now_ms,
                base=bases[0],
                later=bases[1:],
                files_only=files_only,
            )
            same = replace(new, updated_ms=reader.updated_ms) == reader
            return None if same and 0 <= now_ms - reader.updated_ms < same_ms else new

        return tuple(self._manifests.update(published).bases)

    def _demand(self, reader: ReaderManifest) -> ReaderManifest:
        if reader.forgotten:
            raise InvalidSetting(
                f"reader {self._name!r} was forgotten (`imap-wal prune --forget-reader`), so "
                "the log no longer keeps what it has not read: start the query again without "
                "its checkpoint"
            )
        return reader


def forget(context: Context, cluster_folder: str, name: str) -> bool:
    """Keep nothing for a reader any more, even if its manifest is damaged. False if there is none
    of this name."""
    if name not in _names(context.store, cluster_folder):
        return False
    manifests, clock = _manifests(context, cluster_folder, name), context.clock
    was_known = False

    def change(reader: ReaderManifest) -> ReaderManifest:
        nonlocal was_known
        was_known = bool(reader.updated_ms) and not reader.forgotten
        gone = ReaderManifest(reader.positions, clock.now_ms(), forgotten=True)
        return gone if was_known else reader

    try:
        manifests.update(change, alone=True)  # so its lists are deleted, too
    except CorruptLog:
        gone = ReaderManifest({}, clock.now_ms(), forgotten=True)
        return manifests.replace_damaged(gone) or forget(context, cluster_folder, name)
    return was_known


def _manifests(context: Context, cluster_folder: str, name: str) -> ReaderManifestLog:
    return ReaderManifestLog(context, f"{layout.readers_folder(cluster_folder)}/{encode(name)}")
