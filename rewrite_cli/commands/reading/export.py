"""`imap-wal export`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import click

from imap_wal.encoder import json_of_plain
from imap_wal.entry import EXPIRES_AT_MS, KEY_CLASS, MAP, TIMESTAMP_MS, VALUE_CLASS
from imap_wal.errors import LogError
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, FINDINGS, message
from rewrite_cli.console.progress import working
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Moment, iso
from rewrite_cli.console.whole_file import text_file, to_option, whole_file
from rewrite_cli.console.written import NamedOutput
from rewrite_cli.entries import results
from rewrite_cli.entries.database import QueryResult
from rewrite_cli.entries.live import LiveCluster, Reading, merge_all, partial_option
from rewrite_cli.entries.losses import Losses, strict_option
from rewrite_cli.entries.sql_columns import LATEST, batch, with_schema
from rewrite_cli.entries.tables import ReadOptions, batches_of
from rewrite_cli.entries.typed import one_map, schema_of, schema_option
from storage_backends.extras import needs

FORMATS = ("jsonl", "csv", "parquet")
_GROUP_BYTES = 32 * 1024 * 1024
COLUMNS = (
    "namespace",
    "cluster",
    "map",
    "key",
    "value",
    "written",
    "expires",
    "key_class",
    "value_class",
)
_TYPED = ("key_text", "value_json", "written", "expires", "namespace", "cluster")
"""Columns of `query` beside those of a schema."""


@click.command()
@selection_options(nodes=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Default: from the ending of --to, else jsonl.",
)
@to_option
@click.option(
    "--as-of",
    type=Moment(past=True),
    help="The maps as of this time: 2026-11-21T10:00 (UTC), or 2h ago.",
)
@schema_option
@partial_option
@strict_option
def command(
    selection: Selection,
    form: str | None,
    target: Path | None,
    as_of: int | None,
    schema: str | None,
    partial: bool,
    strict: bool,
) -> int:
    """Write the live entries, with decoded keys and values.

    A cluster whose log is damaged is left out and reported, and the exit code is 3: without all of
    its entries, deleted keys could come back. `imap-wal repair` makes a copy that can be exported.
    If all are damaged, nothing is written.

    Keys and values are JSON, in csv and parquet too: a string is in quotation marks there, so that
    it differs from a number. What JSON cannot show exactly is counted, and named with --strict.

    With --schema, fields of the values are columns with these types, and the others are as in
    `query`. A value that does not fit is whole in _rescued, counted, and named with --strict.

    \b
    Examples:
      imap-wal export /var/lib/maps --map orders > orders.jsonl
      imap-wal export /var/lib/maps --to orders.parquet --as-of 2026-11-21T10:00
      imap-wal export /var/lib/maps --map orders --schema "id bigint" --to orders.parquet
    """
    form = form or (target.suffix[1:] if target and target.suffix[1:] in FORMATS else "jsonl")
    if target is not None and not target.name:
        raise click.UsageError("--to is empty; name a file, as in --to orders.jsonl")
    if form == "parquet" and target is None:
        raise click.UsageError("parquet needs a file: --to orders.parquet")
    damaged: list[tuple[str, LogError]] = []
    losses = Losses(strict)
    typed = schema_of(selection, schema)
    reading = Reading(partial, as_of, damaged)
    with working("reading") as tell, ExitStack() as stack:
        context, clusters = stack.enter_context(selection.open(damaged))
        merged = merge_all(
            context,
            clusters,
            selection,
            stack,
            tell,
            reading,
        )
        selection.note_empty(name for cluster in merged for name in cluster.maps)
        if typed:
            options = ReadOptions(selection, losses=losses, schema=typed)
            count = _write_typed(form, target, merged, options)
        else:
            count = write(form, target, records(merged, losses))
    if target is not None:
        out.note(f"{out.count(count, 'entry', 'entries')} in {target}")
    for view, error in damaged:
        out.note(f"left out: cluster {view}: {message(error)}")
    return losses.end() or (FINDINGS if damaged else CLEAN)


def records(clusters: Iterable[LiveCluster], losses: Losses) -> Iterator[dict[str, Any]]:
    """One dict per live entry, for `json.dumps`."""
    for merged in clusters:
        for name in merged.maps:
            for rows in merged.rows(name):
                for row in rows:
                    yield {
                        "namespace": merged.view.namespace,
                        "cluster": merged.view.cluster,
                        "map": row[MAP],
                        "key": losses.key(row, merged.decoder),
                        "value": losses.value(row, merged.decoder),
                        "written": iso(row[TIMESTAMP_MS]),
                        "expires": iso(row[EXPIRES_AT_MS]) or None,
                        "key_class": row[KEY_CLASS],
                        "value_class": row[VALUE_CLASS],
                    }


def _write_typed(
    form: str, target: Path | None, merged: Iterable[LiveCluster], options: ReadOptions
) -> int:
    """Write the entries of the only map; returns how many."""
    columns = with_schema([column for column in LATEST if column.name in _TYPED], options.schema)
    batches = batches_of(one_map(options.selection), merged, columns, options)
    if form == "parquet":
        assert target is not None
        return results.write_parquet(chain([batch(columns, (), options.schema)], batches), target)
    names, types = zip(*((column.name, column.type) for column in columns), strict=True)
    rows = (
        [*zip(*(each.to_pylist(maps_as_pydicts="strict") for each in table.columns), strict=True)]
        for table in batches
    )
    result = QueryResult(names, types, rows)
    return (results.write_csv if form == "csv" else results.write_json)(result, target)


def write(form: str, target: Path | None, entries: Iterable[dict[str, Any]]) -> int:
    """Write the entries; returns how many."""
    if form == "parquet":
        assert target is not None
        return _parquet(target, entries)
    with text_file(target) as file:
        return _jsonl(file, entries) if form == "jsonl" else _csv(file, entries)


def _jsonl(file: NamedOutput, entries: Iterable[dict[str, Any]]) -> int:
    count = 0
    for entry in entries:
        count += 1
        file.write(json_of_plain(entry) + "\n")
    return count


def _csv(file: NamedOutput, entries: Iterable[dict[str, Any]]) -> int:
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    count = 0
    for entry in entries:
        count += 1
        writer.writerow(["" if value is None else value for value in _flat(entry).values()])
    return count


def _parquet(target: Path, entries: Iterable[dict[str, Any]]) -> int:
    with needs("archive"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    schema = pa.schema([pa.field(name, pa.string()) for name in COLUMNS])
    count = 0
    with (
        whole_file(target) as temporary,
        temporary.open("wb", buffering=0) as file,
        pq.ParquetWriter(NamedOutput(file, target), schema, compression="zstd") as writer,
    ):
        batch: list[dict[str, Any]] = []
        size = 0
        for entry in entries:
            count += 1
            flat = _flat(entry)
            batch.append(flat)
            size += len(flat["key"] or "") + len(flat["value"] or "")
            if len(batch) == 50_000 or size >= _GROUP_BYTES:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                batch.clear()
                size = 0
        writer.write_table(pa.Table.from_pylist(batch, schema))
    return count


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        **entry,
        "key": json_of_plain(entry["key"]),
        "value": json_of_plain(entry["value"]),
    }
