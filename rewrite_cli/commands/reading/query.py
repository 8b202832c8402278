"""`imap-wal query`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from rewrite_cli.console import output as out
from rewrite_cli.console.progress import working
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Moment
from rewrite_cli.console.whole_file import to_option
from rewrite_cli.entries import results
from rewrite_cli.entries.database import Database, Query, QueryResult
from rewrite_cli.entries.live import MEMORY_BYTES, partial_option
from rewrite_cli.entries.losses import Losses, strict_option
from rewrite_cli.entries.sql_columns import Column
from rewrite_cli.entries.tables import ReadOptions, load, prepare
from rewrite_cli.entries.typed import schema_of, schema_option

CSV, PARQUET = "csv", "parquet"
_ENDINGS = {"json": out.JSON, "jsonl": out.JSON, CSV: CSV, PARQUET: PARQUET}


@click.command()
@selection_options(nodes=False)
@click.argument("sql", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Choice([out.TABLE, out.JSON, CSV, PARQUET]),
    envvar="IMAP_WAL_OUTPUT",
    help="Format of the results. Default: from the ending of --to, else a table.",
)
@to_option
@click.option(
    "--as-of",
    type=Moment(past=True),
    help="The log as of this time: 2026-11-21T10:00 (UTC), or 2h ago.",
)
@schema_option
@partial_option
@strict_option
def command(
    selection: Selection,
    sql: str | None,
    output: str | None,
    target: Path | None,
    as_of: int | None,
    schema: str | None,
    partial: bool,
    strict: bool,
) -> int:
    """Query a log with SQL, in the dialect of DuckDB. The log is only read.

    \b
    orders            the live entries of the map, as a restart would load them
    latest.orders     the same
    raw.orders        every change of the map, with node and position
    "my map", "a.b"   other names need quotes

    SQL is one statement; - reads it from stdin. Without SQL, the views and their columns are
    listed. Keys and values are JSON in key_text and value_json, and times are UTC. In JSON, each
    row is one line; bytes are hex:..., as `dump --key` takes them. A table shows the first 1,000
    rows only. With --schema, fields of the values are columns with these types, instead of
    value_json; a value that does not fit is whole in _rescued.

    \b
    Examples:
      imap-wal query /var/lib/maps
      imap-wal query /var/lib/maps "select key_text, value_json->>'state' as state from orders"
      imap-wal query /var/lib/maps "select node, count(*) from raw.orders group by all" -o json
      imap-wal query /var/lib/maps "from orders" --to orders.parquet --as-of 2h
      imap-wal query /var/lib/maps --map orders --schema "id bigint" "select max(id) from orders"
    """
    form, losses = _form(output, target), Losses(strict)
    typed = schema_of(selection, schema)
    half = MEMORY_BYTES // 2  # the merge of the log, and the tables, exist at the same time
    with tempfile.TemporaryDirectory(prefix="imap-wal-query-") as scratch:
        database = Database(Path(scratch), half)
        try:
            query = None if sql is None else database.parse(_text(sql))
            options = ReadOptions(selection, partial, as_of, half, losses, typed)
            if query is not None:
                prepare(database, query, options.columns)
            with working("reading") as tell:
                names = load(database, query, options, tell)
            if query is None:
                _print_views(database, names, form, options.columns)
            else:
                _answer(database, query, names, form, target)
        finally:
            database.close()
    return losses.end()


def _form(output: str | None, target: Path | None) -> str:
    if target is None:
        if output == PARQUET:
            raise click.UsageError("parquet needs a file: --to orders.parquet")
        return output or out.TABLE
    if not target.name:
        raise click.UsageError("--to is empty; name a file, as in --to orders.csv")
    form = output if output not in (None, out.TABLE) else _ENDINGS.get(target.suffix[1:])
    if form is None:
        raise click.UsageError(
            f"--to {target}: its ending names no format; end it with .json, .csv or .parquet, or "
            "add -o"
        )
    return form


def _text(sql: str) -> str:
    return sys.stdin.read() if sql == "-" else sql


def _answer(
    database: Database, query: Query, names: list[str], form: str, target: Path | None
) -> None:
    there = ", ".join(map(database.written, map(out.shown, names))) or "none"
    missing = f"The maps are: {there}. Every change of a map x is in raw.x."
    if form == PARQUET:
        assert target is not None
        count = results.write_parquet(database.arrow(query, missing), target)
    else:
        result = database.run(query, missing)
        if form == out.TABLE:
            results.print_table(result)
            return
        count = _write(form, result, target)
    if target is not None:
        out.note(f"{out.count(count, 'row')} in {target}")


def _write(form: str, result: QueryResult, target: Path | None) -> int:
    if form == out.JSON:
        return results.write_json(result, target)
    return results.write_csv(result, target)


def _print_views(
    database: Database, names: list[str], form: str, tables: Mapping[str, Sequence[Column]]
) -> None:
    views = [
        {"view": view, "map": name, "has": has}
        for name in names
        for view, has in (
            (database.written(name), "live entries"),
            (f"raw.{database.written(name)}", "every change"),
        )
    ]
    latest = {column.name for column in tables["latest"]}
    columns = [
        {
            "column": column.name,
            "type": column.type,
            "in": "both" if column.name in latest else "raw",
            "has": column.what,
        }
        for column in tables["raw"]
    ]
    if form == out.JSON:
        out.print_json({"views": views, "columns": columns})
        return
    for rows in (views, columns):
        out.print_table(
            list(rows[0]) if rows else ["view"],
            [list(row.values()) for row in rows],
            prose=(),
            wrapped=("has",),
        )
        out.echo("")
