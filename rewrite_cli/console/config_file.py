"""The TOML file with defaults for the flags.

url = "file:///var/lib/maps"     an option of every command that has it
namespace = "prod"
[rewrite]                        options of one command
engine = "spark"
[node.start]                     of a command in a group
members = 3
[spark]                          properties of Spark, for `rewrite --engine spark`
master = "spark://host:7077"
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import click

from rewrite_cli.console import spark_properties

NAME = "imap-wal.toml"
SPARK = "spark"
"""The table with properties of Spark. The command of that name has no table."""


def find() -> Path | None:
    """The file that is used if none is named. A file that the user may not read is not used:
    after `runuser -u imap-wal`, HOME is still that of root."""
    xdg = (
        Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        / "imap-wal"
        / "config.toml"
    )
    return next((path for path in (Path(NAME), xdg) if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:
        return False


def read_toml(path: Path) -> dict[str, Any]:
    """The content; a UsageError names file and position of a mistake."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also not UTF-8, or a very long number
        raise click.UsageError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error


def defaults(
    path: Path, ctx: click.Context, commands: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """A click `default_map`, and the properties of Spark. Top-level keys apply to every command; a
    command's table overrides them. An unknown key is refused. Raises `UsageError` for it."""
    group = ctx.command
    assert isinstance(group, click.Group)
    data = read_toml(path)
    properties = {}
    if isinstance(data.get(SPARK), dict):
        properties = spark_properties.of_table(path, data.pop(SPARK))
    shared = {
        key.replace("-", "_"): value for key, value in data.items() if not isinstance(value, dict)
    }
    unknown = set(shared)
    result: dict[str, Any] = {}
    for name in commands:
        # `node` is an option and a command.
        table = data.pop(name) if isinstance(data.get(name), dict) else {}
        if unknown or table or name == ctx.invoked_subcommand:
            command = group.get_command(ctx, name)
            assert command is not None
            result[name] = _of_command(path, name, command, shared, table)
            unknown -= _names(command)
    tables = [key for key, value in data.items() if isinstance(value, dict)]
    if tables or unknown:
        raise click.UsageError(
            f"{path}: no command or option is called "
            f"{', '.join(sorted(map(repr, [*tables, *unknown])))}"
        )
    return result, properties


def _of_command(
    path: Path, name: str, command: click.Command, shared: dict[str, Any], table: dict[str, Any]
) -> dict[str, Any]:
    if isinstance(command, click.Group):
        unknown = set(table) - set(command.commands)
        if unknown:
            raise click.UsageError(
                f"{path}: [{name}] knows {', '.join(command.commands)}, not "
                f"{', '.join(sorted(map(repr, unknown)))}"
            )
        return {
            sub: _of_command(path, f"{name}.{sub}", child, shared, table.get(sub, {}))
            for sub, child in command.commands.items()
        }
    options = _names(command)
    own = {key.replace("-", "_"): value for key, value in table.items()}
    if set(own) - options:
        wrong = ", ".join(sorted(map(repr, set(own) - options)))
        raise click.UsageError(
            f"{path}: [{name}] has no option {wrong}; it has {', '.join(sorted(options))}"
        )
    return {key: value for key, value in {**shared, **own}.items() if key in options}


def _names(command: click.Command) -> set[str]:
    if isinstance(command, click.Group):
        return {name for child in command.commands.values() for name in _names(child)}
    return {
        parameter.name
        for parameter in command.params
        if parameter.name and parameter.name not in ("help", "yes")
    }
