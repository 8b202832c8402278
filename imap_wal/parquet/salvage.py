"""Reads the readable part of a damaged archive or file of a snapshot. Pages of Parquet have
checksums: in each row group, the rows before the first damaged page are whole."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, repeat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from imap_wal import names
from imap_wal.contents import Published
from imap_wal.context import Context
from imap_wal.entry import DELETED, KEY, MAP, Row
from imap_wal.errors import EncryptionError, LogError
from imap_wal.format import Position
from imap_wal.parquet.columns import (
    ARCHIVE_SCHEMA,
    POSITION_COLUMNS,
    SNAPSHOT_SCHEMA,
    nodes_of,
    stored_schemas,
    to_batch,
    to_positions,
    to_rows,
)
from imap_wal.parquet.file import ROWS, open_parquet, promise_of
from imap_wal.parquet.reader import validate
from imap_wal.parquet.writer import ParquetFile
from imap_wal.security.encryption_keys import Keys
from imap_wal.segment.snapshot import SnapshotRows, SnapshotWriter, is_segment, salvaged
from storage_backends import NotFound, SegmentStore

_BATCH_ROWS = 1024


Spans: TypeAlias = tuple[tuple[bytes, bytes | None], ...]
"""The keys from each first one on and below the second; None: there is no end."""


class LostRows(NamedTuple):
    """A place where rows are lost. `rows`: their number; None: the file's own index cannot be read.
    `begins`: all of them are at this position of the log or later; None: unknown."""

    rows: int | None
    what: str
    begins: Position | None = None


class Rows(NamedTuple):
    """Whole rows, in the file's order. `places`: their positions, in an archive."""

    rows: list[Row]
    nodes: list[str]
    places: list[Position] | None


def readable(context: Context, path: str, *, log: str | None) -> Iterator[Rows | LostRows]:
    """The readable rows, and between them the damage. `log` is the log directory of an archive (""
    if it is not known), or None for a snapshot."""
    schema = SNAPSHOT_SCHEMA if log is None else ARCHIVE_SCHEMA
    try:
        source = context.store.open_input(path)
    except NotFound:
        yield LostRows(None, "the manifest names this file, but it is missing")
        return
    with source:
        if log is None and is_segment(path):
            yield from _of_segment(source, path, context.keys)
            return
        try:
            file = open_parquet(source, path, context.keys, log or "")
            groups, promised = file.num_row_groups, (file.metadata.metadata or {}).get(ROWS)
            ours = file.schema in stored_schemas()
            sizes = [file.metadata.row_group(group).num_rows for group in range(groups)]
        except EncryptionError as error:
            # The damage may be in the index, which shows whether the file is encrypted.
            if not context.keys.key_ring.keys:
                raise
            yield LostRows(None, error.what)
            return
        except Exception as error:  # noqa: BLE001  # damaged bytes make a parser fail in any way
            yield LostRows(None, f"its index cannot be read ({error})")
            return
        if not ours or not set(file.schema_arrow.names) >= set(schema.names):
            yield LostRows(None, "its columns, or their types, are not those of an imap-wal file")
            return
        if promised != promise_of(sum(sizes), schema.names):
            named = "no number" if promised is None else promised.decode(errors="replace")
            yield LostRows(None, f"its index has {sum(sizes)} rows, but its metadata has {named}")
        for group in range(groups):
            done = 0
            try:
                for batch in file.iter_batches(
                    _BATCH_ROWS, row_groups=[group], columns=schema.names
                ):
                    validate(batch)
                    decoded = Rows(
                        to_rows(batch),
                        nodes_of(batch),
                        None if log is None else to_positions(batch),
                    )
                    done += len(decoded.rows)
                    yield decoded
                if done == sizes[group]:
                    continue
                reason = f"it has {done} rows, but its index says {sizes[group]}"
            except Exception as error:  # noqa: BLE001  # as above
                reason = str(error)
            begins = _first_after(file, group, done)
            yield LostRows(
                max(sizes[group] - done, 0),
                f"row group {group + 1} of {groups}: {reason}",
                None if begins is None else begins._replace(index=0),
            )


def _of_segment(source: BinaryIO, path: str, keys: Keys) -> Iterator[Rows | LostRows]:
    """The readable rows of a segment snapshot."""
    try:
        for part in salvaged(source, path, keys):
            if isinstance(part, SnapshotRows):
                yield Rows(part.rows, part.nodes, None)
            elif part != 0:
                yield LostRows(part, "some of its frames are damaged or missing")
    except (LogError, EncryptionError) as error:
        if isinstance(error, EncryptionError) and not keys.key_ring.keys:
            raise
        yield LostRows(None, error.what)


def _first_after(file: Any, group: int, done: int) -> Position | None:
    """The lowest position of the rows after the first `done` of a row group, of which another
    column is damaged. None if it cannot be read."""
    places: list[Position] = []
    try:
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=POSITION_COLUMNS):
            places += to_positions(batch)
    except Exception:  # noqa: BLE001  # as above
        return None
    if len(places) != file.metadata.row_group(group).num_rows:
        return None
    return min(places[done:], default=None)


class Salvaged(NamedTuple):
    """The result of reading one damaged file: the rows to keep, and what is lost."""

    records: int
    tombstones: int
    first: Position | None
    last: Position | None
    lost: int | None
    """Rows that cannot be read; None: unknown."""
    what: str
    end: Position | None
    """For an archive with damage: entries from this frame on may be lost (None: from the first of
    the file)."""


def count_readable(
    context: Context,
    path: str,
    *,
    log: str | None,
    below: Position | None = None,
    spans: Spans | None = None,
) -> Salvaged:
    """Count the rows that can be kept. `below`: only entries at lower positions. `spans`: only
    those with these keys, and clears with the first key."""
    records = tombstones = 0
    lost: int | None = 0
    first = last = None
    ends: list[Position | None] = []
    reason = ""
    for part in readable(context, path, log=log):
        if isinstance(part, LostRows):
            lost = None if lost is None or part.rows is None else lost + part.rows
            ends.append(part.begins)
            reason = reason or part.what
            continue
        below_end = _wanted(part, below, spans)
        records += len(below_end.rows)
        tombstones += sum(row[DELETED] for row in below_end.rows)
        if below_end.places:
            first = min(below_end.places) if first is None else min(first, *below_end.places)
            last = max(below_end.places) if last is None else max(last, *below_end.places)
    positions = [end for end in ends if end is not None]
    end = min(positions, default=None) if len(positions) == len(ends) else None
    return Salvaged(records, tombstones, first, last, lost, reason, end)


def rows_of(context: Context, path: str, *, log: str | None) -> Iterator[Row]:
    """All readable rows."""
    for part in readable(context, path, log=log):
        if isinstance(part, Rows):
            yield from part.rows


def map_of(
    context: Context, path: str, component: str, map_names: Iterable[str], *, log: str | None
) -> str:
    """The map of a Parquet file, from its folder or its content; "" if unknown."""
    if names.is_hashed(component):
        return names.map_of(component, map_names) or next(
            (row[MAP] for row in rows_of(context, path, log=log)), ""
        )
    return names.decode(component)


def rewrite_file(
    context: Context,
    path: str,
    target: SegmentStore,
    name: str,
    *,
    log: str | None,
    below: Position | None = None,
    spans: Spans | None = None,
) -> Published:
    """Write what can be kept to `target` as `name`, with the same encryption keys. `below`,
    `spans`: as in `count_readable`."""
    with tempfile.TemporaryDirectory(prefix="imap-wal-repair-") as folder:
        if log is None and is_segment(name):
            writer = SnapshotWriter(
                Path(folder),
                name,
                context.clock.now_ms(),
                context.keys.key_ring,
                context.randomness,
            )
            for part in readable(context, path, log=None):
                if isinstance(part, Rows):
                    writer.add(*_wanted(part, below, spans)[:2])
            return writer.publish(target)
        file = ParquetFile(
            Path(folder),
            SNAPSHOT_SCHEMA if log is None else ARCHIVE_SCHEMA,
            context.keys,
            log or "",
        )
        for part in readable(context, path, log=log):
            if isinstance(part, LostRows):
                continue
            below_end = _wanted(part, below, spans)
            if below_end.rows:
                file.write(
                    to_batch(below_end.rows, below_end.nodes, below_end.places),
                    sum(row[DELETED] for row in below_end.rows),
                )
        return file.publish(target, name)


def copy_file(
    store: SegmentStore,
    path: str,
    target: SegmentStore,
    chunk_bytes: int = 8 * 1024 * 1024,
    tell: Callable[[int], None] = lambda _: None,
) -> None:
    """Copy the file under the same name, whole or not at all."""
    size = store.size(path)
    if size <= chunk_bytes:
        target.create(path, store.read(path))
        tell(size)
        return
    with tempfile.NamedTemporaryFile(prefix="imap-wal-repair-") as local:
        with store.open_input(path) as source:
            while data := source.read(chunk_bytes):
                local.write(data)
                tell(len(data))
        local.flush()
        target.create_from(path, local.name)


def _wanted(part: Rows, below: Position | None, spans: Spans | None) -> Rows:
    if below is None and spans is None:
        return part
    tests = [
        (below is None or place is None or place < below)
        and (spans is None or _has(spans, row[KEY] or b""))
        for row, place in zip(part.rows, part.places or repeat(None, len(part.rows)), strict=True)
    ]
    return Rows(
        list(compress(part.rows, tests)),
        list(compress(part.nodes, tests)),
        part.places and list(compress(part.places, tests)),
    )


def _has(spans: Spans, key: bytes) -> bool:
    return any(first <= key and (end is None or key < end) for first, end in spans)
