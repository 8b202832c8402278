"""`--schema`: values as typed columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from imap_wal.errors import InvalidSetting
from rewrite_cli.console.output import F
from rewrite_cli.console.selection import Selection

if TYPE_CHECKING:  # it needs pyarrow
    from imap_wal.sql.types import Schema


def schema_option(command: F) -> F:
    """`--schema`, as `schema`."""
    return click.option(
        "--schema",
        metavar="COLUMNS",
        help='Fields of the values as typed columns, as in "id bigint, at timestamp"; '
        "`imap-wal schema` proposes them. Needs --map.",
    )(command)


def schema_of(selection: Selection, text: str | None) -> Schema:
    """The columns of `--schema`; times are UTC without a zone, as in the other columns. Raises
    click.UsageError."""
    if text is None:
        return {}
    from imap_wal.sql.types import parsed

    one_map(selection)
    try:
        return parsed(text, zone=None)
    except InvalidSetting as error:
        raise click.UsageError(str(error)) from error


def one_map(selection: Selection) -> str:
    """The only map of the selection. Raises click.UsageError."""
    if len(selection.maps) != 1:
        raise click.UsageError("a schema is of the values of one map: name it with --map")
    return selection.maps[0]
