"""The keys that commands use to connect to an agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from imap_wal.agent.access.keys import KeyPair, key_bytes, read_public, read_secret

F = TypeVar("F", bound=Callable[..., Any])


def public_key(text: str) -> str:
    """A public key, given as text or as the name of its file. Raises `InvalidSetting`."""
    is_path = "/" in text or text.endswith((".pub", ".key")) or Path(text).is_file()
    return read_public(text).public if is_path else key_bytes(text, text).hex()


def key_file_option(text: str = "for an agent that requires keys.") -> Callable[[F], F]:
    """Adds --key-file. `text`: the end of its help, which says what it is for."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option("--key-file", type=file, help=f"Your own key (imap-wal keys new), {text}")


def key_options(command: F) -> F:
    """Adds --key-file and --agent-key, for agents whose endpoint requires keys."""
    return click.option(
        "--agent-key", metavar="KEY", help="The public key of that agent, or its .pub file."
    )(key_file_option()(command))


def own_key(key_file: Path | None, agent_key: str | None) -> tuple[KeyPair | None, str]:
    """These options as arguments for `Client`. Raises `UsageError` if only one of the two is given,
    and `InvalidSetting` if one is not a key."""
    if bool(key_file) != bool(agent_key):
        raise click.UsageError(
            "--key-file and --agent-key belong together: your own key, and the agent's public one"
        )
    return (read_secret(key_file), public_key(agent_key)) if key_file and agent_key else (None, "")
