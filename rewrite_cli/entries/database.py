"""A DuckDB database in memory. SQL reads the tables that were put into it, and nothing else: no
files, no network, no variables of this process. A query may run for any time, so do not run SQL
from people you do not trust.

DuckDB ignores upper and lower case in names of tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from rewrite_cli.console.failures import Failed
from rewrite_cli.console.output import shown
from rewrite_cli.entries.sql_columns import Column
from storage_backends.extras import needs

T = TypeVar("T")

SCHEMAS = ("latest", "raw")
"""Names without a schema are looked up in the first one."""
_STAGED, _BATCH = "imap-wal staged", "imap-wal batch"
_NAMED_IN_TEXT = ("query", "query_table", "json_execute_serialized_sql")
"""Functions that take names of tables as text."""
_SOURCES = ("BASE_TABLE", "TABLE_FUNCTION", "SHOW_REF")
_OWN_FAULTS = ("OutOfMemoryException", "IOException", "InternalException", "FatalException")
"""Errors of DuckDB that are not caused by the query."""
_ENDING = re.compile(r"(?:;|--[^\n]*|\s)\s*\Z")
"""A semicolon or a comment at the end. DuckDB puts a query into another one, where it must have
neither."""
_ROWS = 1000


@dataclass(frozen=True)
class Query:
    """One statement that reads.

    `tables`: (schema, table) of what it reads, as the query spells them. Names that it defines
    itself are among them. None: it may read any table, as SHOW TABLES does."""

    text: str
    tables: frozenset[tuple[str, str]] | None


@dataclass(frozen=True)
class QueryResult:
    """Rows, a thousand at a time; they can be read once."""

    columns: Sequence[str]
    types: Sequence[str]
    """In SQL."""
    rows: Iterator[list[tuple[Any, ...]]]


class Database:
    """Not thread-safe. Close it at the end.

    Args:
        scratch: An empty folder for data that does not fit into memory.
        memory_bytes: The memory of tables and queries.

    Raises:
        MissingExtra: DuckDB is not installed.
    """

    def __init__(self, scratch: Path, memory_bytes: int) -> None:
        with needs("duckdb"):
            import duckdb

        self._duckdb = duckdb
        self._worker = ThreadPoolExecutor(1, "imap-wal-query")
        # Otherwise a name in a query could be a variable of the program.
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "python_enable_replacements": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
            },
        )
        for schema in (*SCHEMAS, _STAGED):
            self._execute(f"CREATE SCHEMA {quoted(schema)}")
        for setting, value in (
            ("search_path", SCHEMAS[0]),
            ("memory_limit", f"{memory_bytes}B"),
            ("temp_directory", str(scratch)),
            ("allow_persistent_secrets", "false"),
            ("enable_external_access", "false"),
            ("lock_configuration", "true"),
        ):
            self._execute(f"SET {setting} = {_literal(value)}")
        self._reserved = {
            str(name)
            for (name,) in self._execute(
                "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
            )
        }

    def close(self) -> None:
        """End all queries, and free memory and disk space."""
        self._worker.shutdown()
        self._connection.close()

    def _execute(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self._wait(lambda: self._connection.execute(statement, values).fetchall())

    def _wait(self, call: Callable[..., T], *args: Any) -> T:
        """Call DuckDB in another thread: Python handles no signal during a call, so Ctrl-C would
        wait for its end. A call that a signal does end raises a RuntimeError in its place."""
        answer = self._worker.submit(call, *args)
        try:
            return answer.result()
        except KeyboardInterrupt:
            # Repeated, because an interrupt before the query has begun has no effect.
            while not answer.done():
                self._connection.interrupt()
                wait([answer], 0.1)
            raise

    def parse(self, text: str) -> Query:
        """Parse and check a query.

        Args:
            text: SQL.

        Returns:
            Its one statement.

        Raises:
            click.UsageError: It is not SQL, has more than one statement, or does more than read.
        """
        if "\0" in text:
            raise click.UsageError("the query has a NUL character; leave it out")
        with self._translated():
            kinds, statement = self._statements(text)
        if kinds != ["SELECT"]:
            raise click.UsageError(
                "the query must be one statement that reads: SELECT, FROM, DESCRIBE, or PIVOT "
                f"with IN; found: {' and '.join(kinds) or 'none'}"
            )
        with self._translated():
            while (shorter := _ENDING.sub("", statement)) != statement:
                try:
                    shorter_kinds, _ = self._statements(shorter)
                except self._duckdb.ParserException:
                    shorter_kinds = []
                if shorter_kinds != kinds:  # it was inside a text
                    break
                statement = shorter
        return Query(statement, self._tables_of(statement))

    def _statements(self, text: str) -> tuple[list[str], str]:
        """The kinds of all statements, and the text of the first."""
        parsed = self._connection.extract_statements(text)
        return [statement.type.name for statement in parsed], parsed[0].query if parsed else ""

    def _tables_of(self, statement: str) -> frozenset[tuple[str, str]] | None:
        ((tree,),) = self._execute("SELECT json_serialize_sql($1::VARCHAR)", [statement])
        tables: set[tuple[str, str]] = set()
        others = False
        try:
            waiting = [json.loads(tree)]
        except RecursionError:
            return None
        if waiting[0].get("error"):
            return None
        while waiting:
            tree_node = waiting.pop()
            if isinstance(tree_node, list):
                waiting += tree_node
                continue
            if not isinstance(tree_node, dict):
                continue
            waiting += tree_node.values()
            if tree_node.get("function_name") in _NAMED_IN_TEXT:
                return None
            if tree_node.get("type") in _SOURCES:
                schema = fold(tree_node.get("schema_name") or SCHEMAS[0])
                if tree_node["type"] == "BASE_TABLE" and schema in SCHEMAS:
                    tables.add((schema, tree_node["table_name"]))
                else:
                    others = True
        return None if others and not tables else frozenset(tables)

    def create(self, schema: str, table: str, columns: Sequence[Column]) -> None:
        """Create an empty table, unless it exists."""
        fields = ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)
        self._execute(f"CREATE TABLE IF NOT EXISTS {quoted(schema)}.{quoted(table)} ({fields})")

    def drop(self, schema: str, table: str) -> None:
        """Remove a table, if there is one."""
        self._execute(f"DROP TABLE IF EXISTS {quoted(schema)}.{quoted(table)}")

    def insert(self, schema: str, table: str, batch: Any) -> None:
        """Add rows.

        Args:
            schema: One of `SCHEMAS`.
            table: Its name; `create` made it.
            batch: Arrow columns, in the order of the table.

        Raises:
            Failed: There is no space for them.
        """
        with self._translated():
            self._wait(self._connection.register, _BATCH, batch)
            try:
                self._wait(
                    self._connection.execute,
                    f"INSERT INTO {quoted(schema)}.{quoted(table)} FROM {quoted(_BATCH)}",
                )
            finally:
                self._wait(self._connection.unregister, _BATCH)

    def forget(self, schema: str, table: str, namespace: str, cluster: str) -> None:
        """Remove the rows of one cluster, and all that are staged."""
        self._execute(
            f"DELETE FROM {quoted(schema)}.{quoted(table)} WHERE namespace = $1 AND cluster = $2",  # noqa: S608
            [namespace, cluster],
        )
        self.drop(_STAGED, table)

    def stage(self, table: str, columns: Sequence[Column], batch: Any) -> None:
        """Stage rows of a table, for `absorb`."""
        self.create(_STAGED, table, columns)
        self.insert(_STAGED, table, batch)

    def absorb(
        self, schema: str, table: str, columns: Sequence[Column], same: Sequence[str]
    ) -> None:
        """Add the staged rows of a table that it does not have.

        Args:
            schema: One of `SCHEMAS`.
            table: Its name.
            columns: Its columns.
            same: Rows are the same if these columns are.
        """
        both = " AND ".join(f"new.{quoted(name)} IS NOT DISTINCT FROM old.{quoted(name)}"
                            for name in same)  # fmt: skip
        target = f"{quoted(schema)}.{quoted(table)}"
        self.create(_STAGED, table, columns)
        with self._translated():
            self._wait(
                self._connection.execute,
                f"INSERT INTO {target} SELECT new.* FROM {quoted(_STAGED)}.{quoted(table)} AS new "  # noqa: S608
                f"ANTI JOIN {target} AS old ON {both}",
            )
        self.drop(_STAGED, table)

    def check(self, query: Query) -> None:
        """Check that the query fits the tables, as far as that is known without their rows.

        Raises:
            click.UsageError: It does not. A missing table is not an error here.
        """
        unknown: tuple[type[Exception], ...] = (self._duckdb.CatalogException,)
        if query.tables is None:
            unknown += (self._duckdb.BinderException,)
        with self._translated():
            try:
                self._wait(self._connection.sql, query.text)
            except unknown:
                pass

    def run(self, query: Query, missing: str) -> QueryResult:
        """The rows of a query.

        Args:
            query: The query.
            missing: The advice if a table does not exist.

        Returns:
            Its rows, read while they are taken: errors may come later.

        Raises:
            click.UsageError: DuckDB refuses the query.
            Failed: There is no space for it.
        """
        with self._translated(missing):
            bound = self._wait(self._connection.sql, query.text)
            return QueryResult(
                _distinct(bound.columns), list(map(str, bound.types)), self._rows(query, missing)
            )

    def _rows(self, query: Query, missing: str) -> Iterator[list[tuple[Any, ...]]]:
        with self._translated(missing):
            result = self._wait(self._connection.execute, query.text)
            while rows := self._wait(result.fetchmany, _ROWS):
                yield rows

    def arrow(self, query: Query, missing: str) -> Iterator[Any]:
        """The same rows as Arrow batches, of which there is at least one. Their columns have the
        names of `QueryResult.columns`."""
        with needs("archive"):
            import pyarrow as pa

        with self._translated(missing):
            bound = self._wait(self._connection.sql, query.text)
            names = _distinct(bound.columns)
            read = getattr(bound, "to_arrow_reader", None) or bound.fetch_arrow_reader
            reader = self._wait(read, _ROWS)
            yield reader.schema.empty_table().rename_columns(names)
            while (batch := self._wait(next, reader, None)) is not None:
                yield pa.Table.from_batches([batch]).rename_columns(names)

    def written(self, name: str) -> str:
        """A name in SQL, quoted if necessary."""
        simple = name.isascii() and name.isidentifier() and name == name.lower()
        return name if simple and name not in self._reserved else quoted(name)

    @contextmanager
    def _translated(self, missing: str = "") -> Iterator[None]:
        """Errors of DuckDB as errors of a command."""
        try:
            yield
        except self._duckdb.Error as error:
            name = type(error).__name__
            message = _text(error)
            if name in _OWN_FAULTS:
                raise Failed(f"the query could not be run: {' '.join(message.split())}") from error
            if "'pytz'" in message:
                message = (
                    "a column has a time with time zone, which DuckDB returns only if the library "
                    "pytz is installed; cast it, as in now()::TIMESTAMP"
                )
            elif isinstance(error, self._duckdb.CatalogException) and missing:
                message = f"{message}\n\n{missing}"
            raise click.UsageError(message) from error


def fold(name: str) -> str:
    """A name as DuckDB compares it: without the case of ASCII letters."""
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _text(error: Exception) -> str:
    """The message, which may quote values of the log, for a terminal. DuckDB also suggests tables
    of its own."""
    lines = str(error).strip().split("\n")
    return "\n".join(shown(line) for line in lines if not line.startswith('Did you mean "pg_'))


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number after those that were there before."""
    distinct: dict[str, None] = {}
    for name in names:
        candidate, number = name, 1
        while candidate in distinct:
            candidate, number = f"{name}_{number}", number + 1
        distinct[candidate] = None
    return list(distinct)
