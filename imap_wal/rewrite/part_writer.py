"""Writes the part files of one map of a new snapshot, from rows or from columns, in key order."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from imap_wal.clock import Randomness, SystemRandomness
from imap_wal.contents import Published
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE, Row, subject
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA, to_batch
from imap_wal.parquet.file import GROUP_BYTES_MAX
from imap_wal.parquet.writer import ParquetFile
from imap_wal.read.newest.rivals import RivalClaims
from imap_wal.read.newest.table import in_pages
from imap_wal.rewrite.plan import Part, RewritePlan
from imap_wal.rewrite.publish import latest_expiry
from imap_wal.rewrite.ranges import KeptPart, separator
from imap_wal.rewrite.tally import Subject
from imap_wal.rules.dropped import may_be_dropped
from imap_wal.rules.newer import Claim
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

NO_CONFLICTS: Mapping[bytes, RivalClaims] = {}
PART_ROWS, PART_BYTES = 65_536, 16 * 1024 * 1024
PART_ROWS_MAX, PART_BYTES_MAX = 1_000_000, 256 * 1024 * 1024
PARTS_OF_A_SIZE = 64
"""A part file ends at this number of rows, or of bytes in memory. Both limits double after each
`PARTS_OF_A_SIZE` parts of a map. So a small change of a small map writes little, and a large map
does not have too many files."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys of one writer. `partition`: the number of the range in its map. `lower`: no key is
    lower. `kept`: former files that become parts as they are, in key order; no added row is in
    their ranges. `growth`: how often the limits of a part have doubled in the ranges before."""

    partition: int = 0
    lower: bytes = b""
    kept: tuple[KeptPart, ...] = ()
    growth: int = 0


WHOLE_MAP = KeyRange()

Publish: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs what compresses a part and stores it: now, or later in another thread."""


def at_once(work: Callable[[], None]) -> None:
    work()


class PartWriter:
    """Writes the rows of one map that are kept as part files, in key order. In a dry run it only
    measures their size. Every file has a unique name, so that another attempt at the same work
    cannot replace it. No file is replaced or deleted here."""

    def __init__(
        self,
        context: Context,
        plan: RewritePlan,
        name: str,
        folder: Path,
        keys: KeyRange = WHOLE_MAP,
        randomness: Randomness | None = None,
        publish: Publish = at_once,
    ) -> None:
        self._context, self._plan, self._name, self._folder = context, plan, name, folder
        self._publish = publish
        self._decoded = plan.decoded(name)
        self._partition, self._growth = keys.partition, keys.growth
        self._randomness = randomness or SystemRandomness()
        self._file: ParquetFile | None = None
        self._rows = self._bytes = self._conflicts = 0
        self._clears = False
        self._expiry_ms: list[int] = []
        self._first_expiry_ms = 0
        self._parts: list[Part] = []
        """Those that are not kept have no size and no checksum yet: `_published`, by number."""
        self._published: dict[int, Published] = {}
        self._kept = deque(keys.kept)
        self._lower: bytes | None = keys.lower
        """The lower border of the current file, or of the next one."""
        self._last = b""
        """The last key that was written."""

    def add_clears(self, claims: Sequence[Claim], late: set[Subject]) -> None:
        """Add the newest clears. Must be called before all else."""
        rule = self._plan.rule
        remaining = [
            (row, node)
            for row, node in claims
            if not rule.drops(row, node, bool(late) and subject(row) in late)
        ]
        if remaining:
            batch = to_batch([row for row, _ in remaining], [node for _, node in remaining])
            self._write(batch, None, clears=True)

    def add(
        self,
        rows: list[Row],
        nodes: list[str],
        late: set[Subject],
        conflicts: Mapping[bytes, RivalClaims] = NO_CONFLICTS,
    ) -> None:
        """Add the newest rows of the next keys, and the nodes that wrote them. For keys in
        `conflicts`, all claims are kept."""
        drops = self._plan.rule.drops
        claims = list(zip(rows, nodes, strict=True))
        dead = [may_be_dropped(row) for row in rows]
        if any(dead):
            claims = [
                (row, node)
                for (row, node), maybe in zip(claims, dead, strict=True)
                if not maybe
                or row[KEY] in conflicts
                or not drops(row, node, bool(late) and subject(row) in late)
            ]
        if conflicts:
            claims = [
                claim
                for row, node in claims
                for claim in (
                    conflicts[row[KEY]].claims if row[KEY] in conflicts else ((row, node),)
                )
            ]
        self.count_conflicts(len(conflicts))
        losers = {id(row) for conflict in conflicts.values() for row, _ in conflict.claims[1:]}
        # Split by bytes: a column of a batch must be smaller than 2 GiB.
        for page in in_pages(
            claims,
            [len(row[KEY]) + len(row[VALUE] or b"") for row, _ in claims],
            GROUP_BYTES_MAX,
        ):
            rows, nodes = [row for row, _ in page], [node for _, node in page]
            lost = pa.array([id(row) in losers for row in rows], pa.bool_()) if losers else None
            self.write(to_batch(rows, nodes), lost)

    def write(self, batch: Any, losers: Any = None) -> None:
        """Add the rows of the next keys, all of which are kept, as a record batch with
        `SNAPSHOT_SCHEMA`. `losers`: which rows are claims that lost; they follow the winner."""
        keys = batch.column("key")
        while len(batch) and self._kept and keys[-1].as_py() >= self._kept_lower:
            count = bisect_left(keys, self._kept_lower, key=_bytes)
            self._write(batch.slice(0, count), None if losers is None else losers.slice(0, count))
            self._take_kept()
            batch, keys = batch.slice(count), keys.slice(count)
            losers = None if losers is None else losers.slice(count)
        self._write(batch, losers)

    def count_conflicts(self, count: int) -> None:
        """Count keys in conflict among the rows that are added next: before, because a part may end
        with them."""
        self._conflicts += count

    @property
    def _kept_lower(self) -> bytes:
        return self._kept[0].part.lower or b""

    def _take_kept(self) -> None:
        """The next kept file is the next part."""
        self._finish()
        kept_part = self._kept.popleft()
        self._parts.append(kept_part.part)
        self._lower = kept_part.upper

    def _write(self, batch: Any, losers: Any, *, clears: bool = False) -> None:
        """Write rows, in as many files as necessary."""
        start = 0
        while start < len(batch):
            growth = 2 ** (self._growth + len(self._parts) // PARTS_OF_A_SIZE)
            rows_max = min(PART_ROWS * growth, PART_ROWS_MAX) - self._rows
            bytes_max = min(PART_BYTES * growth, PART_BYTES_MAX) - self._bytes
            fitting = bytes_max * len(batch) // max(1, batch.nbytes)
            stop = min(start + max(1, min(rows_max, fitting)), len(batch))
            if losers is not None:  # all claims of a key are in one file
                while stop < len(batch) and losers[stop].as_py():
                    stop += 1
            count = stop - start
            lost = None if losers is None else losers.slice(start, count)
            self._append(batch.slice(start, count), lost, clears)
            if count >= rows_max or self._bytes >= min(PART_BYTES * growth, PART_BYTES_MAX):
                self._finish()
            start = stop

    def _append(self, batch: Any, losers: Any, clears: bool) -> None:
        """Append rows to the current file."""
        keys = batch.column("key")
        if self._file is None:
            self._file = ParquetFile(
                self._folder, SNAPSHOT_SCHEMA, self._context.keys, decoded=self._decoded
            )
            if self._parts and not self._parts[-1].is_kept:
                self._lower = separator(self._last, keys[0].as_py())
        self._last = keys[-1].as_py()
        dead = batch.column("deleted")
        self._file.write(batch, (dead if losers is None else pc.or_(dead, losers)).true_count)
        self._rows += len(batch)
        self._bytes += batch.nbytes
        self._clears |= clears
        expires = batch.column("expires_at_ms")
        some = expires.filter(pc.not_equal(expires, 0))
        if clears or len(some) < len(expires):
            self._expiry_ms = [0]
        else:
            self._expiry_ms = [latest_expiry((*self._expiry_ms, pc.max(expires).as_py()))]
        if len(some) and not clears:
            first = pc.min(some).as_py()
            self._first_expiry_ms = min(first, self._first_expiry_ms or first)

    def end(self) -> None:
        """There are no more rows: store the last part."""
        self._finish()
        while self._kept:
            self._take_kept()

    def parts(self) -> tuple[Part, ...]:
        """All parts, after `end`, when everything that was given to `publish` has ended."""
        return tuple(
            part if part.is_kept else replace(part, **self._published[number]._asdict())
            for number, part in enumerate(self._parts)
        )

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        number = len(self._parts)
        path = self._plan.part_path(self._name, self._partition, number, self._randomness.name())

        def publish() -> None:
            dry_run, store = self._plan.dry_run, self._context.store
            self._published[number] = file.discard() if dry_run else file.publish(store, path)

        expiry = latest_expiry(self._expiry_ms)
        live = file.records - file.tombstones
        self._parts.append(
            Part(
                path,
                live,
                file.tombstones,
                0,
                0,
                self._partition,
                number,
                expiry,
                self._conflicts,
                self._clears,
                self._lower,
                self._first_expiry_ms,
            )
        )
        self._publish(publish)
        self._rows = self._bytes = self._conflicts = self._first_expiry_ms = 0
        self._clears = False
        self._expiry_ms = []


def _bytes(scalar: Any) -> bytes:
    return bytes(scalar.as_py())
