"""`imap-wal completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rewrite_cli.console import output as out

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in the shell.

    \b
    Examples:
      imap-wal completion bash > ~/.local/share/bash-completion/completions/imap-wal
      imap-wal completion zsh > ~/.zfunc/_imap-wal
      imap-wal completion fish > ~/.config/fish/completions/imap-wal.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # one of SHELLS
    out.raw(kind(ctx.find_root().command, {}, "imap-wal", "_IMAP_WAL_COMPLETE").source())
