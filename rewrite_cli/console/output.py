"""Prints results on stdout as a table or as JSON, progress and notes on stderr."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from imap_wal import progress
from imap_wal.encoder import finite
from rewrite_cli.console.encoding import is_unicode, suited
from rewrite_cli.console.written import writing

F = TypeVar("F", bound=Callable[..., Any])

TABLE, JSON = "table", "json"
_PROSE = ("what", "detail", "what to do")
_LONG = (*_PROSE, "file")
"""Columns whose text may take several lines."""
_FOLDED = 16
"""The smallest width of such a column, if its text is wider."""
WIDTH = 80
"""Columns of prose outside a terminal."""


def output_option(command: F) -> F:
    """`-o table|json`, as `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([TABLE, JSON]),
        default=TABLE,
        show_default=True,
        envvar="IMAP_WAL_OUTPUT",
        help="Format of the results.",
    )(command)


@dataclass(frozen=True, slots=True)
class Styled:
    """Text of which parts have a style. Names in it may contain escape sequences of their own,
    which must not reach a terminal, so it is kept in parts until it is printed."""

    parts: tuple[tuple[str, Mapping[str, Any]], ...]

    def __add__(self, other: str | Styled) -> Styled:
        return Styled((*self.parts, *_parts(other)))

    def __radd__(self, other: str) -> Styled:
        return Styled((*_parts(other), *self.parts))


def styled(text: str, **style: Any) -> Styled:
    """The text with a style of `click.style`, to which further text can be added."""
    return Styled(((text, style),))


def _parts(text: str | Styled) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return text.parts if isinstance(text, Styled) else ((text, {}),)


def shown(text: str) -> str:
    """The text on one line, safe for a terminal: escapes such as \\x1b replace control characters,
    marks that change the direction of text, and all other unprintable characters."""
    return (
        text
        if text.isprintable()
        else "".join(
            character if character.isprintable() else repr(character)[1:-1] for character in text
        )
    )


def json_text(text: str) -> str:
    """A JSON document, with escapes such as \\u009b for unprintable characters."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
        for character in text
    )


def names(those: Iterable[object]) -> str:
    """Names for an error or a note, in their order; "none" without any."""
    return ", ".join(shown(str(item)) for item in those) or "none"


def safe(text: str | Styled) -> str:
    """The text for a terminal. It may contain names and values, so only our own styles, line ends
    and tabs are unchanged."""
    parts = []
    for part, style in _parts(text):
        plain = "\n".join("\t".join(map(shown, line.split("\t"))) for line in part.split("\n"))
        parts.append(click.style(plain, **style) if style else plain)
    return "".join(parts)


def echo(text: str | Styled, *, err: bool = False) -> None:
    """Print lines, as `safe`."""
    if err:
        click.echo(suited(safe(text), err=True), err=True)
    else:
        raw(suited(safe(text)))


def raw(text: str, *, nl: bool = True) -> None:
    """Print text of ours, unchanged, on the standard output."""
    with writing():
        click.echo(text, nl=nl)


def prose(text: str | Styled) -> None:
    """Print a sentence; in a terminal, on lines that fit it."""
    line = safe(text)
    if sys.stdout.isatty():
        line = textwrap.fill(line, Console().width, break_on_hyphens=False, subsequent_indent="  ")
    raw(suited(line))


def errors() -> Console:
    """The console of stderr."""
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document."""
    echo(json_text(_json(value, indent=2)))


def print_line(value: Any) -> None:
    """One JSON document on one line."""
    echo(json_text(_json(value)))


def _json(value: Any, indent: int | None = None) -> str:
    ascii_only = not is_unicode()
    return json.dumps(finite(value), indent=indent, default=jsonable, ensure_ascii=ascii_only)


def jsonable(value: Any) -> Any:
    """For `json.dumps(default=)`: bytes as hex, all other values as text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": bytes(value).hex()}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str = "",
    *,
    prose: Collection[str] = _PROSE,
    wrapped: Collection[str] = _LONG,
) -> None:
    """Numbers are right-aligned, text left-aligned. A column called `… bytes` shows KiB, MiB, GiB.
    Outside a terminal, plain text: each row is one line of any length, and the text of its `prose`
    columns follows on further lines. In a terminal, cells of `wrapped` columns may take several
    lines. No cell is cut: a table that is wider than the terminal becomes a block for each row."""
    all_rows = [list(row) for row in rows]
    numeric = [
        any(isinstance(row[at], int | float) and not isinstance(row[at], bool) for row in all_rows)
        for at in range(len(columns))
    ]
    cells = [
        [_cell(column, value) for column, value in zip(columns, row, strict=True)]
        for row in all_rows
    ]
    if not sys.stdout.isatty():
        for line in _plain(columns, cells, numeric, title, prose):
            echo(line)
        return
    console = Console(highlight=False)
    folded = [column in wrapped for column in columns]
    fitting = _headings(columns, cells, folded, console.width)
    if fitting is None:
        print_records(columns, cells, title, prose=prose)
        return
    table = Table(
        box=SIMPLE_HEAD if is_unicode() else None,
        title=Text(suited(shown(title)), "bold") if title else None,
        title_justify="left",
        pad_edge=False,
    )
    for heading, right, folds in zip(fitting, numeric, folded, strict=True):
        table.add_column(
            heading,
            justify="right" if right else "left",
            no_wrap=not folds,
            overflow="fold",
        )
    for row in cells:
        table.add_row(*(Text(suited(text)) for text in row))  # no markup
    with writing():
        console.print(table)


def _headings(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    folded: Sequence[bool],
    width: int,
) -> list[str] | None:
    """The headings with which no cell has to be cut: as they are, or with each word on a line of
    its own. None: the table is too wide even with these."""
    frame = 3 * (len(columns) - 1) + 2
    for headings in (list(columns), [column.replace(" ", "\n") for column in columns]):
        needed = [_widest(text) for text in headings]
        for at, folds in enumerate(folded):
            widest = max((_widest(row[at]) for row in rows), default=0)
            needed[at] = max(needed[at], min(widest, _FOLDED) if folds else widest)
        if sum(needed) + frame <= width:
            return headings
    return None


def _widest(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def print_records(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    *,
    prose: Collection[str] = (),
) -> None:
    """One line for each value, for a table that is wider than the terminal."""
    if title:
        echo(title)
    longest = max(map(len, columns))
    for number, row in enumerate(rows, 1):
        echo(f"row {number:,}")
        for name, text in zip(columns, row, strict=True):
            start = f"  {name:<{longest}}  "
            if name in prose:
                echo(_filled(start, shown(text.replace("\n", " "))))
            else:
                echo(start + shown(text))


def _filled(start: str, text: str) -> str:
    return textwrap.fill(
        text,
        Console().width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    title: str,
    prose: Collection[str],
) -> Iterator[str]:
    rows = [[text.replace("\n", "\\n") for text in row] for row in rows]
    short = [at for at, column in enumerate(columns) if column not in prose]
    widths = {at: max(len(row[at]) for row in [columns, *rows]) for at in short}

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            row[at].rjust(widths[at]) if numeric[at] else row[at].ljust(widths[at]) for at in short
        ).rstrip()

    if title:
        yield title
    yield line(columns)
    for row in rows:
        yield line(row)
        for at, text in enumerate(row):
            if at not in widths and text != NOTHING:
                yield textwrap.fill(
                    f"{columns[at]}: {text}",
                    WIDTH,
                    initial_indent="    ",
                    subsequent_indent="      ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )


NOTHING = "–"


def _cell(column: str, value: Any) -> str:
    match value:
        case None | "":
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case int() if column.endswith("bytes"):
            return size(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case _:
            return "\n".join(map(shown, str(value).split("\n")))


size = progress.size


def count(number: int, one: str, many: str = "") -> str:
    """1 → 1 file, 1234 → 1,234 files. `many`: if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    """0.0123 → 12 ms, 75 → 1 min 15 s, 4500 → 1 h 15 min, 176_400 → 2 d 1 h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    return f"{hours} h {minute} min" if hours else f"{minutes} min {second} s"


def note(text: str) -> None:
    """Print a note to stderr, on one line."""
    echo(shown(text), err=True)


def note_once(text: str) -> None:
    """Print a note that this command has not printed before."""
    context = click.get_current_context(silent=True)
    said: set[str] = set() if context is None else context.meta.setdefault(__name__, set())
    if text not in said:
        said.add(text)
        note(text)


def agree(question: str, yes: bool, look: str = "--dry-run") -> None:
    """Return if the user agrees, by `--yes` or on the terminal. `look`: how the user can see what
    would be done. Raises `UsageError` if there is no terminal, and `Abort` if the user says no."""
    if yes:
        return
    question = shown(question)
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{question} No terminal to ask on: repeat the command with --yes, or first see what "
            f"it would do: {look}."
        )
    click.confirm(question, abort=True, err=True)


def yes_option(command: F) -> F:
    """`--yes`, as `yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do it without asking.")(command)


def dry_run_option(command: F) -> F:
    """`--dry-run`, as `dry_run`."""
    return click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")(
        command
    )
