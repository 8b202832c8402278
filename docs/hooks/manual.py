"""The man page, made from the commands' help: `python docs/hooks/manual.py` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from rewrite_cli.cli import COMMANDS, group

PAGE = Path(__file__).parents[1] / "man" / "imap-wal.1"


def page() -> str:
    """The whole page."""
    ctx = click.Context(group, info_name="imap-wal", **group.context_settings)
    lines = [
        '.TH IMAP\\-WAL 1 "" "imap\\-wal" "User Commands"',
        ".SH NAME",
        "imap\\-wal \\- write\\-ahead logs of Hazelcast maps, and of maps embedded in Python",
        ".SH SYNOPSIS",
        ".B imap\\-wal",
        "[OPTIONS] COMMAND [ARGS]...",
        ".SH DESCRIPTION",
        *_prose(group.help or ""),
        *_prose(group.epilog or ""),
        ".SH OPTIONS",
        *_options(group, ctx),
        ".SH COMMANDS",
    ]
    for name in COMMANDS:
        command = group.get_command(ctx, name)
        assert command is not None
        lines += _command(command, ctx, name)
    return "\n".join(lines) + "\n"


def _command(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    ctx = click.Context(command, parent, info_name=name)
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f'.SS "{_text(usage)}"'
    yield from _prose(command.help or "")
    yield from _options(command, ctx)
    if isinstance(command, click.Group):
        for child in command.list_commands(ctx):
            found = command.get_command(ctx, child)
            assert found is not None
            yield from _command(found, ctx, child)


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and record[1]:  # newer versions of click list arguments
            yield ".TP"
            yield f"\\fB{_text(record[0])}\\fR"
            yield _text(record[1])


def _prose(text: str) -> Iterator[str]:
    """Paragraphs; those that begin with \\b keep their lines."""
    for paragraph in re.split(r"\n\s*\n", _dedented(text)):
        lines = paragraph.strip("\n").split("\n")
        if lines[0].strip() == "\b":
            yield from (".PP", ".nf", *map(_text, lines[1:]), ".fi")
        else:
            yield from (".PP", _text(" ".join(line.strip() for line in lines)))


def _dedented(text: str) -> str:
    first, _, rest = text.partition("\n")
    margin = min(
        (len(line) - len(line.lstrip(" ")) for line in rest.split("\n") if line.strip()), default=0
    )
    return "\n".join([first, *(line[margin:] for line in rest.split("\n"))])


def _text(line: str) -> str:
    """With nothing that groff takes for a request or an escape."""
    escaped = line.replace("\\", "\\(rs").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="ascii")
