"""`docs/cli.md`: every command's help, as it is.

python -m rewrite_cli.reference > docs/cli.md
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from rewrite_cli import cli


def page() -> str:
    """The whole page."""
    parts = ["# Command line", "", "Made from the commands' own help: `python -m rewrite_cli.reference > docs/cli.md`.", ""]
    with click.Context(cli.group, info_name="imap-wal", terminal_width=110, **cli.group.context_settings) as top:
        for command, context in _commands(cli.group, top):
            depth = "##" if context is top or context.parent is top else "###"
            parts += [f"{depth} {context.command_path}", "", "```text", command.get_help(context).rstrip(), "```", ""]
    return "\n".join(parts).rstrip() + "\n"


def _commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from _commands(child, click.Context(child, info_name=name, parent=context, terminal_width=110))


if __name__ == "__main__":
    click.echo(page(), nl=False)
