"""What is printed: results on stdout as a table or as JSON, progress and notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])

TABLE, JSON = "table", "json"
_LONG = ("what", "file", "detail", "what to do")
"""Columns whose text may take several lines."""


def output_option(command: F) -> F:
    """`-o table|json`, as `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([TABLE, JSON]),
        default=TABLE,
        show_default=True,
        envvar="IMAP_WAL_OUTPUT",
        help="How results are printed.",
    )(command)


def console() -> Console:
    """For stdout; outside a terminal as wide as a row needs, so that nothing is cut."""
    return Console(width=None if sys.stdout.isatty() else 4000, soft_wrap=False, highlight=False)


def errors() -> Console:
    """For stderr."""
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, indent=2, default=jsonable, ensure_ascii=False))


def print_line(value: Any) -> None:
    """One JSON document on one line."""
    click.echo(json.dumps(value, default=jsonable, ensure_ascii=False))


def jsonable(value: Any) -> Any:
    """For `json.dumps(default=)`: bytes as hex, everything else as its text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": bytes(value).hex()}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Numbers to the right, text to the left. A column called `… bytes` shows KiB, MiB, GiB."""
    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    kept = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) and not isinstance(row[index], bool) for row in kept)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=column not in _LONG, overflow="fold")
    for row in kept:
        table.add_row(*(_cell(column, value) for column, value in zip(columns, row, strict=True)))
    console().print(table)


def _cell(column: str, value: Any) -> str:
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case int() if column.endswith("bytes"):
            return size(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case _:
            return str(value).replace("[", r"\[")


def size(count: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def duration(seconds: float) -> str:
    """0.0123 → 12 ms, 75 → 1 min 15 s."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def note(text: str) -> None:
    """A remark for people, on stderr."""
    click.echo(text, err=True)


def progress() -> AbstractContextManager[Progress]:
    """A spinner with a text on stderr; silent outside a terminal."""
    shown = errors()
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=shown, transient=True, disable=not shown.is_terminal
    )


def agree(question: str, yes: bool) -> None:
    """Go on after `--yes` or a terminal's answer; else leave, with nothing changed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody is here to answer: repeat the command with --yes, or look first with --dry-run.")
    click.confirm(question, abort=True, err=True)


def yes_option(command: F) -> F:
    """`--yes`, as `yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do it without asking.")(command)


def dry_run_option(command: F) -> F:
    """`--dry-run`, as `dry_run`."""
    return click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")(command)
