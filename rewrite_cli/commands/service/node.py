"""`imap-wal node`."""

from __future__ import annotations

import json
import signal
import tempfile
import tomllib
from pathlib import Path
from types import FrameType
from typing import Any

import click

from imap_wal.clock import SystemClock
from imap_wal.security.credentials import Credentials
from rewrite_cli.console import output as out
from rewrite_cli.console.selection import Url
from rewrite_cli.console.times import Duration
from rewrite_cli.local_cluster.launcher import Cluster, ClusterPlan
from storage_backends.location import Location


@click.group()
def command() -> None:
    """Real Hazelcast members with plug-in and agents, for trials and tests."""


def _pairs(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        pairs[key.strip().replace("-", "_") if parameter.name == "settings" else key.strip()] = (
            text.strip()
        )
    return pairs


def _typed(text: str) -> Any:
    """A value as in TOML; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


@command.command()
@click.option(
    "--members",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="The number of members.",
)
@click.option(
    "--url",
    type=Url(),
    envvar="IMAP_WAL_URL",
    help="Root of the logs. Default: a new temporary folder, which is kept.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65519),
    default=5701,
    show_default=True,
    help="Port of the first member; the others use the next ones.",
)
@click.option("--namespace", envvar="IMAP_WAL_NAMESPACE", default="default", show_default=True)
@click.option(
    "--cluster",
    envvar="IMAP_WAL_CLUSTER",
    default="dev",
    show_default=True,
    help="Name of the cluster's folder under URL.",
)
@click.option("--cluster-name", default="dev", show_default=True, help="Hazelcast's cluster name.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="A setting of the agents' [log], such as durability=os; may be repeated.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="A property of the plug-in without the prefix imap-wal., such as read-through=true.",
)
@click.option(
    "--clock-offset-ms",
    "offsets",
    type=int,
    multiple=True,
    help="Shift the clock of the first agent, the second, ...; for tests.",
)
@click.option(
    "--java-option",
    "java_options",
    multiple=True,
    default=["-Xmx512m"],
    show_default=True,
    help="For the members' JVM; may be repeated.",
)
@click.option(
    "--hazelcast-jar",
    type=click.Path(path_type=Path),
    envvar="IMAP_WAL_HAZELCAST_JAR",
    help="Hazelcast's own jar, if it is not found.",
)
@click.option(
    "--takeover",
    is_flag=True,
    help="Each agent fences another agent that still has its log.",
)
@click.option(
    "--timeout",
    type=Duration(),
    default=120,
    show_default=True,
    help="How long to wait until all have joined (120s, 2m).",
)
@out.output_option
@click.pass_context
def start(
    ctx: click.Context,
    members: int,
    url: Location | None,
    port: int,
    namespace: str,
    cluster: str,
    cluster_name: str,
    settings: dict[str, str],
    properties: dict[str, str],
    offsets: tuple[int, ...],
    java_options: tuple[str, ...],
    hazelcast_jar: Path | None,
    takeover: bool,
    timeout: float,
    output: str,
) -> None:
    """Start members with an agent each, in the foreground. Every map is durable.

    The last line of the output says "ready" when all members have joined and all agents are
    healthy. A signal to the process group ends all; so does Ctrl-C. The cluster does not wait for
    nodes of an earlier run with more members (start_policy = "partial").

    \b
    Examples:
      imap-wal node start
      imap-wal node start --members 2 --url file:///tmp/maps --set durability=interval
    """
    options = ctx.find_root().obj or {}
    credentials: Path | None = options.get("credentials")
    keys = {"encryption_keys": options["encryption_keys"]} if options.get("encryption_keys") else {}
    _refuse_options(url, credentials)
    log_url = str(url or Path(tempfile.mkdtemp(prefix="imap-wal-maps-")).as_uri())
    plan = ClusterPlan(
        url=log_url,
        credentials=credentials,
        members=members,
        port=port,
        namespace=namespace,
        cluster=cluster,
        cluster_name=cluster_name,
        settings={**keys, **{key: _typed(value) for key, value in settings.items()}},
        properties=properties,
        clock_offsets_ms=offsets,
        java_options=java_options,
        takeover=takeover,
        hazelcast_jar=hazelcast_jar,
    )
    _run(Cluster(plan, SystemClock()), timeout, output)


def _refuse_options(url: Location | None, credentials_file: Path | None) -> None:
    """`UsageError` if the URL has options that the file `credentials_file` does not have."""
    if (
        url is not None
        and url.options
        and (
            credentials_file is None
            or Credentials.read(credentials_file).given_to(Location(url.url)).options != url.options
        )
    ):
        raise click.UsageError(
            f"{url}: node start writes URLs to the configuration files of its agents; put "
            "options into a file for --credentials"
        )


def _run(running: Cluster, timeout: float, output: str) -> None:
    """Start, and wait for a signal or the end of a process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, _leave)
    try:
        running.start(timeout)
        _show(running, output)
        running.watch()
    except KeyboardInterrupt:
        out.note("stopping")
    finally:
        # Otherwise a second Ctrl-C would leave members running.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            running.stop()
            running.remove_folder()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show(running: Cluster, output: str) -> None:
    plan = running.plan
    children = [
        {"address": address, "process": member.pid, "agent": endpoint, "agent_process": agent.pid}
        for address, member, endpoint, agent in zip(
            plan.addresses, running.members, running.endpoints, running.agents, strict=True
        )
    ]
    if output == out.JSON:
        out.echo(
            json.dumps(
                {"ready": True, "url": plan.url, "folder": str(running.folder), "members": children}
            )
        )
        return
    for number, child in enumerate(children, 1):
        out.echo(
            f"member {number}: {child['address']} (process {child['process']}), agent "
            f"{child['agent']} (process {child['agent_process']})"
        )
    out.echo(f"log: {plan.url}")
    out.echo("ready")
