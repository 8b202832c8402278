"""The columns of a table: those of the log, text of keys and values, and those of a schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from imap_wal.decoder import Decoder
from imap_wal.errors import InvalidSetting
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA, plain
from imap_wal.sql.columns import KEY_TEXT, RESCUE, VALUE_TEXTS, TypedColumns, texts
from imap_wal.sql.types import parsed
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa

_VALUE_JSON = VALUE_TEXTS[-1]


class Shape:
    """Raises `InvalidSetting` for a schema or a column that is not valid. `names`: of the log's
    columns and texts; the schema (may be empty) adds its own, and hides those with their names."""

    def __init__(
        self,
        schema: str,
        names: Sequence[str],
        misfits: str = RESCUE,
        decoder: Decoder | None = None,
    ) -> None:
        self._decoder = decoder or Decoder()
        own = {field.name: field for field in SNAPSHOT_SCHEMA}
        own |= {name: pa.field(name, pa.string()) for name in (KEY_TEXT, _VALUE_JSON)}
        for name in names:
            if name not in own:
                raise InvalidSetting(f"there is no column {name!r}; columns takes {', '.join(own)}")
        self._typed = TypedColumns(parsed(schema), self._decoder, misfits) if schema else None
        typed = self._typed.fields if self._typed is not None else []
        hidden = {field.name.lower() for field in typed}
        self._names = [name for name in dict.fromkeys(names) if name not in hidden]
        self.schema = pa.schema([*(own[name] for name in self._names), *typed])

    def reader(self, batches: Iterator[Any]) -> Any:
        """A `pyarrow.RecordBatchReader` of batches that `of_batch` made."""
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def of_batch(self, batch: Any) -> Any:
        """The columns for a record batch of whole entries."""
        shown = texts(batch, self._names, self._decoder)
        batch = plain(batch)
        columns = [shown[name] if name in shown else batch[name] for name in self._names]
        if self._typed is not None:
            columns += self._typed.of_batch(batch)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
