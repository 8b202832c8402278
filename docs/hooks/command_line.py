"""The examples in the help of commands become code on the page of the command line.

click prints a paragraph that begins with `\\b` as it is; Markdown would join its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

import click

from rewrite_cli.cli import group

AS_IT_IS = re.compile(r"^\x08\n([^\n]*:\n)?(.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


def on_pre_build(config: Any) -> None:
    for command in _all(group, click.Context(group, info_name="imap-wal")):
        command.help = AS_IT_IS.sub(_code, cleandoc(command.help or ""))


def _all(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from _all(child, click.Context(child, info_name=name, parent=context))


def _code(paragraph: re.Match[str]) -> str:
    title, lines = paragraph.group(1) or "", cleandoc(paragraph.group(2)).splitlines()
    return "\n".join([title, *(f"    {line}" for line in lines)])
