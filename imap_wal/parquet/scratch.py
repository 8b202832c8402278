"""Record batches that wait on this machine, by tag: in memory, and above a limit in one file
without a name, so that nothing is left even after a kill."""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from imap_wal.rules.arrow import pc
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa


class Scratch:
    """Batches of one schema, without dictionaries. Raises OSError if the folder has no space."""

    def __init__(self, schema: Any, memory_bytes: int, folder: Path | None = None) -> None:
        self._schema, self.room, self._folder = schema, memory_bytes, folder
        """`room`: how many bytes more it may have in memory."""
        self._file: BinaryIO | None = None
        self._end = 0
        self._held: dict[Hashable, list[tuple[int, Any]]] = {}
        """Tag → (rows, the batch, or its offset and length in the file)."""

    def add(self, tag: Hashable, batch: Any, *, keep: bool = True) -> None:
        """`keep` false: the batch is written to the file in any case."""
        held: Any = batch
        size = batch.nbytes
        if keep and size <= self.room:
            self.room -= size
        else:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="imap-wal-", dir=self._folder)
            data = batch.serialize()
            self._file.seek(self._end)
            self._file.write(data)
            held = self._end, data.size
            self._end += data.size
        self._held.setdefault(tag, []).append((len(batch), held))

    def tags(self) -> list[Any]:
        return list(self._held)

    def read(self, tag: Hashable) -> Iterator[Any]:
        """The batches of a tag, in the order in which they were added."""
        for _, held in self._held.get(tag, ()):
            yield self._loaded(held)

    def taken(self, tag: Hashable) -> Iterator[Any]:
        """`read`, once: it frees their memory."""
        for _, held in self._held.pop(tag, ()):
            if not isinstance(held, tuple):
                self.room += held.nbytes
            yield self._loaded(held)

    def some(self, tag: Hashable, rows: Any) -> Iterator[Any]:
        """The rows with these numbers, counted from the first batch of the tag, in order. `rows`:
        integers that increase. Other batches are not read."""
        start = first = 0
        for count, held in self._held.get(tag, ()):
            stop = bisect_left(rows, first + count, start, key=_number)
            if stop > start:
                inside = rows.slice(start, stop - start)
                yield self._loaded(held).take(pc.subtract(inside, first))
            start, first = stop, first + count

    def close(self) -> None:
        self._held.clear()
        if self._file is not None:
            self._file.close()

    def _loaded(self, held: Any) -> Any:
        if not isinstance(held, tuple):
            return held
        assert self._file is not None
        offset, length = held
        self._file.seek(offset)
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(length)), self._schema)


def _number(scalar: Any) -> int:
    return int(scalar.as_py())
