"""`imap-wal doctor`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from rewrite_cli.console import output as out
from rewrite_cli.console.agent_keys import key_options, own_key
from rewrite_cli.console.check import OK, PROBLEM, WARNING
from rewrite_cli.console.failures import FINDINGS
from rewrite_cli.console.selection import EndpointType, url_argument
from rewrite_cli.doctor.agent import agent_checks
from rewrite_cli.doctor.environment import environment_checks, java_checks
from rewrite_cli.doctor.storage import storage_checks
from storage_backends.location import Location

_STYLES: dict[str, dict[str, Any]] = {
    OK: {"fg": "green"},
    WARNING: {"fg": "yellow"},
    PROBLEM: {"fg": "red", "bold": True},
}


@click.command()
@partial(url_argument, required=False)
@click.option(
    "--agent",
    "endpoints",
    metavar="TEXT",
    type=EndpointType(),
    multiple=True,
    help="The endpoint of an agent to check: ipc:///path or tcp://host:port; may be repeated.",
)
@key_options
@out.output_option
def command(
    url: Location | None,
    endpoints: tuple[str, ...],
    key_file: Path | None,
    agent_key: str | None,
    output: str,
) -> int:
    """Check the environment; with URL, also the storage and its logs; with --agent, also whether
    agents are healthy. Exit code 3 if there is a problem.

    \b
    Examples:
      imap-wal doctor
      imap-wal doctor /var/lib/maps --agent ipc:///run/imap-wal/agent.sock
      imap-wal doctor --agent tcp://10.0.0.5:7701 --key-file ~/monitor.key --agent-key agent-1.pub
    """
    key, server = own_key(key_file, agent_key)
    checks = [*environment_checks(), *java_checks()]
    failed: set[str] = set()
    agents = [
        agent_check for one in endpoints for agent_check in agent_checks(one, key, server, failed)
    ]
    if url:
        checks += storage_checks(url, key, failed)
    checks += agents
    if output == out.JSON:
        out.print_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            out.echo(
                out.styled(check.status, **_STYLES[check.status])
                + f"{'':<{7 - len(check.status)}}  {check.name}: {check.what}"
            )
            if check.advice:
                out.echo(f"         → {check.advice}")
    return FINDINGS if any(check.status == PROBLEM for check in checks) else 0
