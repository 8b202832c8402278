"""Prints and writes the rows of a query."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from imap_wal.encoder import finite
from rewrite_cli.console import output as out
from rewrite_cli.console.whole_file import text_file, whole_file
from rewrite_cli.console.written import NamedOutput
from rewrite_cli.entries.database import QueryResult
from storage_backends.extras import needs

TABLE_ROWS = 1000
"""A table is laid out in memory, and people do not read a longer one."""
_NARROW = 6
"""Up to this number of columns, any terminal shows a table. Cells may take several lines."""
_JSON = "JSON"


def print_table(result: QueryResult) -> None:
    """The first rows as a table on stdout. A note says if there are more."""
    rows: list[list[str]] = []
    for some in result.rows:
        rows += (
            [_cell(value, type) for value, type in zip(row, result.types, strict=True)]
            for row in some
        )
        if len(rows) > TABLE_ROWS:
            break
    _lay_out([out.shown(name) for name in result.columns], rows[:TABLE_ROWS])
    if len(rows) > TABLE_ROWS:
        out.note(
            f"these are the first {TABLE_ROWS:,} rows; -o json and -o csv print all, and LIMIT in "
            "the query makes this faster"
        )


def _lay_out(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; in a terminal, where many columns do not fit beside each other, one line for each
    value."""
    wide = sum(
        2 + max(len(out.shown(row[at])) for row in [columns, *rows]) for at in range(len(columns))
    )
    if len(columns) <= _NARROW or not sys.stdout.isatty() or wide <= shutil.get_terminal_size()[0]:
        out.print_table(columns, rows, prose=(), wrapped=columns)
        return
    out.print_records(columns, rows)


def write_json(result: QueryResult, target: Path | None) -> int:
    """One JSON document on each line; returns how many."""
    count = 0
    with text_file(target) as file:
        for row in _each(result.rows):
            count += 1
            line = json.dumps(
                {
                    name: _json_value(value, type)
                    for name, value, type in zip(result.columns, row, result.types, strict=True)
                },
                ensure_ascii=False,
            )
            if target is None:
                out.echo(out.json_text(line))
            else:
                file.write(line + "\n")
    return count


def write_csv(result: QueryResult, target: Path | None) -> int:
    """A line of names, then one for each row; returns how many rows. NULL is empty. On a
    terminal, escapes replace control characters."""
    shown = target is None and sys.stdout.isatty()
    count = 0
    with text_file(target) as file:
        writer = csv.writer(file)
        writer.writerow([out.shown(name) if shown else name for name in result.columns])
        for row in _each(result.rows):
            count += 1
            cells = (
                "" if value is None else _cell(value, type)
                for value, type in zip(row, result.types, strict=True)
            )
            writer.writerow([out.shown(cell) if shown else cell for cell in cells])
    return count


def write_parquet(batches: Iterator[Any], target: Path) -> int:
    """A Parquet file; returns how many rows.

    Args:
        batches: `pyarrow.Table`s, at least one.
        target: The file.

    Raises:
        click.UsageError: Parquet has no such type.
    """
    with needs("archive"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    count = 0
    first = next(batches)
    with whole_file(target) as temporary, temporary.open("wb", buffering=0) as file:
        try:
            with pq.ParquetWriter(
                NamedOutput(file, target), first.schema, compression="zstd"
            ) as writer:
                for batch in batches:
                    count += batch.num_rows
                    writer.write_table(batch)
        except pa.ArrowNotImplementedError as error:
            raise click.UsageError(
                f"Parquet cannot store one of these columns: {out.shown(str(error))}; cast it, as "
                "in x::VARCHAR"
            ) from error
    return count


def _each(pages: Iterable[list[tuple[Any, ...]]]) -> Iterator[tuple[Any, ...]]:
    for page in pages:
        yield from page


def _cell(value: Any, type: str) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case bytes() | bytearray() | memoryview():
            return _hex(value)
        case dict() | list() | tuple():
            return json.dumps(_json_value(value, type), ensure_ascii=False)
        case _:
            return str(value)


def _json_value(value: Any, type: str) -> Any:
    match value:
        case str() if type == _JSON:
            return _parsed(value)
        case bytes() | bytearray() | memoryview():
            return _hex(value)
        case dict():
            return {str(key): _json_value(item, "") for key, item in value.items()}
        case list() | tuple():
            return [_json_value(item, "") for item in value]
        case None | bool() | int() | str():
            return value
        case float():
            return finite(value)
        case _ if hasattr(value, "isoformat"):
            return value.isoformat()
        case _:
            return str(value)


def _parsed(text: str) -> Any:
    """The text itself if Python cannot read it as JSON, such as a number of 5,000 digits."""
    try:
        return finite(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _hex(data: bytes | bytearray | memoryview) -> str:
    """The form that `dump --key` takes."""
    return f"hex:{bytes(data).hex()}"
