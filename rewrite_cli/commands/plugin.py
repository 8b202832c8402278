"""`imap-wal plugin`."""

from __future__ import annotations

import click

from rewrite_cli import hazelcast_yaml, jars
from rewrite_cli import output as out
from rewrite_cli.scope import Endpoint


@click.group()
def command() -> None:
    """The jar that a Hazelcast member needs on its classpath, and its configuration."""


@command.command()
@out.output_option
def path(output: str) -> None:
    """Print where the plug-in's jar is.

    \b
    Example:
      java -cp "hazelcast.jar:$(imap-wal plugin path)" -Dhazelcast.config=hazelcast.yaml com.hazelcast.core.server.HazelcastMemberStarter
    """
    jar = str(jars.plugin_jar())
    if output == out.JSON:
        out.print_json({"jar": jar, "factory": hazelcast_yaml.FACTORY})
    else:
        click.echo(jar)


@command.command()
@click.option(
    "--agent",
    metavar="TEXT",
    type=Endpoint(),
    default="ipc:///run/imap-wal/agent.sock",
    show_default=True,
    help="Where the agent listens: ipc:///path or tcp://host:port.",
)
@click.option("--map", "maps", multiple=True, help="Only these maps are durable (wildcards as in Hazelcast); may be repeated. Default: all.")
@click.option("--cluster-name", default="dev", show_default=True, help="Hazelcast's cluster name.")
def config(agent: str, maps: tuple[str, ...], cluster_name: str) -> None:
    """Print a hazelcast.yaml to paste.

    \b
    Examples:
      imap-wal plugin config > hazelcast.yaml
      imap-wal plugin config --agent tcp://127.0.0.1:7701 --map orders --map 'session-*'
    """
    click.echo(hazelcast_yaml.to_paste(maps or ("default",), agent, cluster_name), nl=False)
