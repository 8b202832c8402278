"""The files of a snapshot as files of a table: those that the table has, those that are added as
they are, and copies without tombstones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from imap_wal.clock import Randomness
from imap_wal.errors import InvalidSetting
from imap_wal.manifest.snapshots import Snapshot, SnapshotFile
from imap_wal.parquet.columns import are_clears, plain
from imap_wal.parquet.file import demand_rows
from imap_wal.parquet.reader import reading
from imap_wal.publish.lake_table import COLUMNS, DELETED, EXPIRES, KEY, DataFile, TableState
from imap_wal.read.cluster import ClusterLog
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

COPIES = "published"
_COPY = re.compile(COPIES + r"/([0-9]{8,})-(.+)-[0-9a-f]+\.parquet")


@dataclass(frozen=True, slots=True)
class ExaminedFile:
    """A file of a snapshot that becomes one of the table. `path`: in the folder. `rows`: without
    `tombstones`; clears are among these."""

    path: str
    size: int
    rows: int
    tombstones: int
    statistics: Mapping[str, Any]

    @property
    def is_copied(self) -> bool:
        return self.tombstones > 0

    def published(self, log: ClusterLog, folder: str, *, dry_run: bool) -> DataFile:
        """The file of the table. One with tombstones is copied without them before, if this is no
        `dry_run`."""
        if not self.is_copied:
            return DataFile(self.path, self.size, self.rows, self.statistics)
        path, size, statistics = _copy_path(self.path, log.randomness), self.size, self.statistics
        if not dry_run:
            size, statistics = _copy(log, f"{folder}/{self.path}", f"{folder}/{path}")
        return DataFile(path, size, self.rows, statistics)


def examined_files(
    log: ClusterLog,
    folder: str,
    name: str,
    snapshot: Snapshot,
    former: TableState,
    lost: Collection[str],
) -> tuple[list[str], list[ExaminedFile]]:
    """Splits the files of a snapshot: the paths, in the table, of those that it has already, and
    the other files with live entries. `lost`: see `lost_copies`."""
    there = {source_of("", path): path for path in former.files if path not in lost}
    present, new = list[str](), list[ExaminedFile]()
    for stored in snapshot.files:
        path = stored.path.removeprefix(f"{folder}/")
        if path in there:
            present.append(there[path])
            continue
        file = _examined(log, name, stored, path, several_nodes=len(snapshot.marks) > 1)
        if file.rows:
            new.append(file)
    return present, new


def _copy_path(path: str, randomness: Randomness) -> str:
    """A new path for a copy. No two publications use the same one, so none deletes a copy at a path
    that another one writes to."""
    stem = path.removesuffix(".parquet").replace("/", "-")
    return f"{COPIES}/{stem}-{randomness.token().hex()}.parquet"


def source_of(folder: str, path: str) -> str:
    """The path of the file of which this is a copy; `path` if it is none."""
    start = f"{folder}/" if folder else ""
    matched = _COPY.fullmatch(path.removeprefix(start))
    return path if matched is None else f"{start}{matched[1]}/{matched[2]}.parquet"


def _examined(
    log: ClusterLog, name: str, stored: SnapshotFile, path: str, *, several_nodes: bool
) -> ExaminedFile:
    """Reads the footer; if there may be tombstones, their column too; and of several nodes the
    keys, because two of them may claim one. Raises `InvalidSetting` for such a key, `NotFound`,
    and `CorruptLog`."""
    tombstones, former = 0, None  # the last key of the batch before
    with reading(log.context, stored.path, 0, "") as parquet:
        for rows in (stored.rows, parquet.metadata.num_rows):
            demand_rows(parquet, stored.path, rows)
        deletions = any(upper is not False for _, upper in _bounds(parquet.metadata, DELETED))
        columns = [DELETED] * deletions
        if several_nodes:
            columns = [KEY, DELETED, EXPIRES]
        for batch in parquet.iter_batches(columns=columns) if columns else ():
            tombstones += batch[DELETED].true_count
            if several_nodes:
                keys = batch[KEY].filter(pc.invert(are_clears(batch)))  # which have the same key
                twice = pc.any(pc.equal(keys[1:], keys[:-1])).as_py()
                if twice or (former is not None and keys and former == keys[0].as_py()):
                    raise InvalidSetting(
                        f"map {name!r} has keys that two nodes claim, so a key has several rows: "
                        "decide with `imap-wal rewrite --resolve` first"
                    )
                former = keys[-1].as_py() if keys else former
        statistics = _statistics(parquet.metadata)
    return ExaminedFile(path, stored.size, stored.rows - tombstones, tombstones, statistics)


def _bounds(metadata: Any, column: str) -> Iterator[tuple[Any, Any]]:
    """The lowest and the highest value of a column in each row group; None: unknown."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in range(group.num_columns):
            chunk = group.column(at)
            if chunk.path_in_schema == column:
                bounds = chunk.statistics
                has = bounds is not None and bounds.has_min_max
                yield (bounds.min, bounds.max) if has else (None, None)


def _statistics(metadata: Any) -> Mapping[str, Any]:
    """Of the columns of numbers, as Delta has them."""
    lows: dict[str, int] = {}
    highs: dict[str, int] = {}
    for column, kind in COLUMNS.items():
        bounds = [*_bounds(metadata, column)] if kind == "long" else []
        if bounds and all(low is not None for low, _ in bounds):
            lows[column] = min(low for low, _ in bounds)
            highs[column] = max(high for _, high in bounds)
    return {"minValues": lows, "maxValues": highs, "nullCount": dict.fromkeys(lows, 0)}


def _copy(log: ClusterLog, path: str, copy: str) -> tuple[int, Mapping[str, Any]]:
    """Write a copy of a file without its tombstones, one row group after the other. Returns its
    size and statistics."""
    with (
        TemporaryDirectory(prefix="imap-wal-") as scratch,
        reading(log.context, path, 0, "") as file,
    ):
        made = f"{scratch}/copy.parquet"
        schema = file.schema.to_arrow_schema().remove_metadata()
        with pq.ParquetWriter(made, schema, compression="zstd") as writer:
            for number in range(file.num_row_groups):
                for batch in file.iter_batches(row_groups=[number]):
                    live = plain(batch.filter(pc.invert(batch[DELETED])))
                    writer.write_batch(pa.record_batch(live.columns, schema=schema))
        statistics = _statistics(pq.read_metadata(made))
        log.store.create_from(copy, made)
    return log.store.size(copy), statistics


def lost_copies(log: ClusterLog, folder: str, former: TableState) -> set[str]:
    """The copies of the table that are not there, because they are in no backup, or were deleted
    with another table of the map."""
    copies = {path for path in former.files if source_of("", path) != path}
    if not copies:
        return copies
    there = {file.path.removeprefix(f"{folder}/") for file in log.store.list(f"{folder}/{COPIES}")}
    return copies - there
