"""`imap-wal agent`."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed
from storage_backends import StorageError, open_store, with_url


@click.command()
@click.option(
    "--config",
    "config_file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The agent's TOML file; see docs/reference/agent.toml.",
)
@click.option(
    "--takeover",
    is_flag=True,
    help="Fence another agent that has this node's log: it acknowledges nothing more.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Read the configuration and the keys that it names, look for the drivers of its storages, "
    "print it, and stop.",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    default="json",
    show_default=True,
    help="Format of the agent's own log lines, on stderr.",
)
@click.pass_context
def command(
    ctx: click.Context, config_file: Path, takeover: bool, check: bool, log_format: str
) -> None:
    """Run the service beside a Hazelcast member: the only writer of its node's log.

    SIGTERM or SIGINT commits waiting changes, writes the clean-shutdown frame and exits with 0. If
    another agent has the node's log, the exit code is 4.

    \b
    Examples:
      imap-wal agent --config /etc/imap-wal/agent.toml
      imap-wal agent --config agent.toml --check
    """
    from imap_wal.agent.config import AgentConfig
    from imap_wal.security.encryption_keys import Keys

    options = ctx.find_root().obj or {}
    credentials, keys = options.get("credentials"), options.get("encryption_keys")
    config = AgentConfig.from_toml(
        config_file, takeover=takeover, **({"credentials": str(credentials)} if credentials else {})
    )
    if keys:
        config = replace(config, log=replace(config.log, encryption_keys=keys))
    if (config.storage_options or config.wal_dir_options) and config_file.stat().st_mode & 0o004:
        click.echo(
            f"warning: {config_file} has options of a storage and is open to every user of "
            f"this machine; run: chmod o= {config_file}",
            err=True,
        )
    if check:
        config.access.check_files()
        Keys(config.log.encryption_keys)
        for place in filter(None, (config.place, config.place.wal_dir)):
            try:
                open_store(place).close()
            except StorageError as error:
                raise Failed(f"{config_file}: {with_url(place, error)}") from error
        for doubt in config.doubts:
            click.echo(f"warning: {doubt}", err=True)
        out.echo(
            f"node {config.node} of {config.namespace}/{config.cluster}, log at "
            f"{config.url}, listening at {config.endpoint}, durability "
            f"{config.log.durability}, "
            + (f"metrics at http://{config.http_address}" if config.http_address else "no metrics")
        )
        return
    configure_logging(log_format)
    # Before pyarrow is imported. Its own allocator keeps what was freed: see
    # docs/decisions/agents.md.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from imap_wal.agent.monitoring.traces import traced
    from imap_wal.agent.process import run

    with traced(config, os.environ):
        run(config)


def configure_logging(log_format: str) -> None:
    """structlog to stderr, one line per event."""
    import structlog

    renderer = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
