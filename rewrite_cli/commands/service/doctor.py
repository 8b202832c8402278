"""`imap-wal doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from imap_wal.version import VERSION
from rewrite_cli.console import output as out
from rewrite_cli.console.agent_keys import key_options, own_key
from rewrite_cli.console.check import OK, PROBLEM, WARNING, Check
from rewrite_cli.console.failures import FINDINGS, Failed
from rewrite_cli.console.selection import EndpointType, url_argument
from rewrite_cli.doctor.agent import agent_checks
from rewrite_cli.doctor.storage import storage_checks
from rewrite_cli.local_cluster import jars
from storage_backends.location import Location
from storage_backends.registry import BACKENDS, added

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


# What is installed on this machine: packages, and what members need.

EXTRAS = {
    "pyarrow": "archive",
    "pyzmq": "agent",
    "hazelcast-python-client": "hazelcast",
    "pyspark": "spark",
    **{backend.library: backend.extra for backend in BACKENDS.values() if backend.library},
    "cryptography": "encryption",
    "duckdb": "duckdb",
    "pyiceberg": "iceberg",
    "opentelemetry-sdk": "otel",
}
"""The extra that installs each package."""


def environment_checks() -> Iterator[Check]:
    """Python, and the packages of the extras."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    yield Check(
        "python",
        OK if sys.version_info >= (3, 11) else PROBLEM,
        f"{running} at {sys.executable}",
        "" if sys.version_info >= (3, 11) else "use Python 3.11 or newer",
    )
    yield Check("imap-wal", OK, VERSION)
    absent = []
    for package, extra in EXTRAS.items():
        try:
            yield Check(package, OK, version(package))
        except PackageNotFoundError:
            absent.append(f"{package} [{extra}]")
    for point in added():
        yield Check(f"{point.name}://", OK, f"a storage of another package, {point.value}")
    if absent:
        yield Check(
            "extras",
            OK,
            f"not installed, needed only for optional features: {', '.join(absent)}",
        )


def java_checks() -> Iterator[Check]:
    """Java, the plug-in's jar, Hazelcast's jar: needed by members, not by embedded maps."""
    try:
        release = jars.java_version()
        yield Check(
            "java",
            OK if release >= 17 else WARNING,
            f"{release} at {jars.java()}",
            "" if release >= 17 else "members need Java 17 or newer",
        )
    except Failed as error:
        yield Check(
            "java", WARNING, error.message, "needed for members and Spark, not for embedded maps"
        )
    for name, find in (("plug-in jar", jars.plugin_jar), ("hazelcast jar", jars.hazelcast_jar)):
        try:
            yield Check(name, OK, str(find()))
        except Failed as error:
            yield Check(
                name,
                WARNING,
                error.message,
                "needed for `imap-wal node start`, not for embedded maps",
            )
