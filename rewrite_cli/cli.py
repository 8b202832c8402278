"""`imap-wal`: one group, with a module per command in `commands`, imported at its first use.

flags  ▶  IMAP_WAL_* variables  ▶  TOML file  ▶  defaults            (console/config_file.py)
results on stdout as table or json, progress on stderr                (console/output.py)
errors ▶ one line and an exit code                                    (console/failures.py)
"""

from __future__ import annotations

import importlib
import sys
from keyword import iskeyword
from pathlib import Path
from typing import Any

from rewrite_cli.console.interrupts import as_ctrl_c, ends_the_process

with ends_the_process():
    from storage_backends.extras import needs

    with needs("cli"):
        import click

        # Every command needs rich. If it is missing, that is reported before anything else.
        import rich  # noqa: F401
        from click.shell_completion import CompletionItem

    from imap_wal.collector import collect_rarely
    from imap_wal.version import VERSION
    from rewrite_cli.console import config_file as config
    from rewrite_cli.console.closed import replace_closed_streams
    from rewrite_cli.console.failures import CLEAN, report

# In the order in which a new user needs them.
_MODULES = {
    "node": ("service", "real Hazelcast members with plug-in and agents, for trials and tests"),
    "agent": ("service", "the service beside a member"),
    "serve": ("service", "the maps of a Python program, for several processes"),
    "stream": ("service", "transactions with optimistic locks"),
    "plugin": ("service", "the path of the jar; a hazelcast.yaml to paste"),
    "keys": ("service", "keys for agents over TCP; the token of a cluster"),
    "ls": ("reading", "clusters, nodes and files under a URL"),
    "stat": ("reading", "live and dead records and bytes; how long a restart would take to load"),
    "get": ("reading", "the newest value of one key, or all versions that the log still has"),
    "tail": ("reading", "the last entries, and new ones as they are appended"),
    "dump": ("reading", "the raw entries of the log, newest last"),
    "diff": ("reading", "what differs between two logs, or between two times of one log"),
    "verify": ("reading", "read every byte and report damage"),
    "repair": ("copies", "a repaired copy of a damaged log, with a report of what is given up"),
    "archive": ("upkeep", "turn sealed segments into Parquet"),
    "rewrite": ("upkeep", "publish a snapshot with only the newest entry of every key"),
    "publish": ("upkeep", "the snapshot of a map as a Delta table, without a copy"),
    "spark": ("upkeep", "imap-wal as a zip for the workers of Spark"),
    "prune": ("upkeep", "remove what a snapshot covers"),
    "query": ("reading", "query a log with SQL"),
    "schema": ("reading", "propose typed columns for the values of a map"),
    "export": ("reading", "the live entries as jsonl, csv or parquet"),
    "restore": ("copies", "what a restart would load, or a clean copy of it"),
    "import": ("copies", "copy entries of shelve, sqlitedict, diskcache or SeaTunnel into maps"),
    "backup": ("copies", "copy logs while they are written; only new content is copied"),
    "backup-restore": ("copies", "put a backup back as a log; list backups"),
    "encryption-key": ("service", "a new key for encryption at rest; the key of the Parquet files"),
    "drop": ("upkeep", "forget a map"),
    "forget-node": ("upkeep", "forget a node that will not return"),
    "claim": ("upkeep", "take the log from a Hazelcast cluster that will not return"),
    "doctor": ("service", "check the environment, the storage and the agent"),
    "decode": ("upkeep", "choose the maps with readable columns in Parquet files"),
    "completion": ("shell", "completion of commands and options in bash, zsh and fish"),
}
"""Name → folder of `commands`, and what it does."""
COMMANDS = {name: help_text for name, (_, help_text) in _MODULES.items()}


class LazyGroup(click.Group):
    """Knows its commands by name, and imports each at its first use: `imap-wal --help` loads no
    Parquet library."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with ends_the_process():
            folder, file = _MODULES[cmd_name][0], cmd_name.replace("-", "_")
            if iskeyword(file):
                file += "_"
            module = importlib.import_module(f"rewrite_cli.commands.{folder}.{file}")
        command: click.Command = module.command
        command.name, command.short_help = cmd_name, COMMANDS[cmd_name]
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without importing the commands."""
        names = [
            CompletionItem(name, help=help_text)
            for name, help_text in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            ctx.fail(
                f"no such command {args[0]!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(COMMANDS)}")
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "IMAP_WAL",
        "max_content_width": 110,
    },
    epilog="""\b
URL is the root of the logs: a path, file:///var/lib/maps, s3://bucket/maps, or another fsspec URL.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 findings (damage), 4 locked or lost a race.
Every option can come from a variable (such as IMAP_WAL_REWRITE_ENGINE) or a TOML file.""",
)
@click.version_option(VERSION, prog_name="imap-wal", message="%(prog)s %(version)s")
@click.option(
    "--config",
    "config_file",
    envvar="IMAP_WAL_CONFIG",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with defaults; otherwise ./imap-wal.toml, or imap-wal/config.toml under "
    "$XDG_CONFIG_HOME.",
)
@click.option(
    "--credentials",
    envvar="IMAP_WAL_CREDENTIALS",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with the options of storages by URL, such as access keys: see "
    "docs/security.md.",
)
@click.option(
    "--file-mode",
    envvar="IMAP_WAL_FILE_MODE",
    default="",
    show_default="those of the log's folders; 0600 for a new log",
    help="Permissions of files that a command creates in a log.",
)
@click.option(
    "--encryption-keys",
    envvar="IMAP_WAL_ENCRYPTION_KEYS",
    default="",
    help="Where the keys of an encrypted log come from: file:PATH, env:NAME or command:COMMAND.",
)
@click.option(
    "--progress",
    envvar="IMAP_WAL_PROGRESS",
    type=click.Choice(["auto", "json", "none"]),
    default="auto",
    show_default=True,
    help="The progress of long work, on stderr: a bar on a terminal (auto), one JSON event a line, "
    "or nothing.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def group(
    ctx: click.Context,
    config_file: Path | None,
    credentials: Path | None,
    file_mode: str,
    encryption_keys: str,
    progress: str,
    debug: bool,
) -> None:
    """Maps that do not forget: the write-ahead log of Hazelcast's IMap, and of maps embedded in
    Python.

    \b
    Examples:
      imap-wal node start --members 2                two real members, every map durable
      imap-wal stat file:///var/lib/maps             what is in a log, how long a restart takes
      imap-wal verify s3://bucket/maps -o json       exit code 3 when something is damaged
    """
    ctx.obj = {
        "debug": debug,
        "credentials": credentials,
        "file_mode": file_mode,
        "encryption_keys": encryption_keys,
        "progress": progress,
    }
    config_path = config_file or config.find()
    if config_path is not None:
        if config_path != config_file and not config_path.is_absolute():
            from rewrite_cli.console import output as out

            out.note(
                f"settings from {config_path} of the current folder; --config FILE takes those of "
                "another file"
            )
        ctx.default_map, ctx.obj["spark"] = config.defaults(config_path, ctx, list(COMMANDS))


def main(
    arguments: list[str] | None = None, command: click.Command = group, name: str = "imap-wal"
) -> Any:
    """The entry point: handles exit codes and error texts, with `failures`."""
    words = sys.argv[1:] if arguments is None else arguments
    # Only in a process of the command line: a library must not change its program's streams,
    # collector and signals.
    if arguments is None:
        replace_closed_streams()
        collect_rarely()
    try:
        if arguments is None:
            as_ctrl_c()
        code = command.main(args=words, prog_name=name, standalone_mode=False)
    # Every error becomes a line and an exit code here.
    except BaseException as error:  # noqa: BLE001
        sys.exit(report(error, debug="--debug" in words))
    sys.exit(code if isinstance(code, int) else CLEAN)


if __name__ == "__main__":
    main()
