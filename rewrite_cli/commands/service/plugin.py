"""`imap-wal plugin`."""

from __future__ import annotations

import click

from rewrite_cli.console import output as out
from rewrite_cli.console.agent_keys import public_key
from rewrite_cli.console.selection import EndpointType
from rewrite_cli.local_cluster import hazelcast_yaml, jars


@click.group()
def command() -> None:
    """The jar that a member of Hazelcast or SeaTunnel needs on its classpath, and its
    configuration."""


@command.command()
@click.option("--seatunnel", is_flag=True, help="The jar for servers of SeaTunnel's engine.")
@out.output_option
def path(seatunnel: bool, output: str) -> None:
    """Print the path of the plug-in's jar.

    \b
    Examples:
      java -cp "hazelcast.jar:$(imap-wal plugin path)" -Dhazelcast.config=hazelcast.yaml \\
        com.hazelcast.core.server.HazelcastMemberStarter
      cp "$(imap-wal plugin path --seatunnel)" "$SEATUNNEL_HOME/lib/"
    """
    jar = str(jars.plugin_jar(jars.SEATUNNEL_NAME if seatunnel else jars.PLUGIN_NAME))
    if output == out.JSON:
        factory = hazelcast_yaml.SEATUNNEL_FACTORY if seatunnel else hazelcast_yaml.FACTORY
        out.print_json({"jar": jar, "factory": factory})
    else:
        out.raw(jar)


@command.command()
@click.option(
    "--agent",
    metavar="TEXT",
    type=EndpointType(),
    default="ipc:///run/imap-wal/agent.sock",
    show_default=True,
    help="Where the agent listens: ipc:///path or tcp://host:port.",
)
@click.option(
    "--map",
    "maps",
    multiple=True,
    help="Only maps with this name are durable (* matches any characters); may be repeated. "
    "Default: all.",
)
@click.option(
    "--transient",
    multiple=True,
    metavar="TEXT",
    help="Maps with this name are not durable, even if --map matches; may be repeated.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="TEXT",
    help="Queues with this name are durable (* matches any characters); may be repeated.",
)
@click.option(
    "--ringbuffer",
    "ringbuffers",
    multiple=True,
    metavar="TEXT",
    help="Ringbuffers with this name are durable; may be repeated.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TEXT",
    help="Reliable topics with this name are durable; may be repeated.",
)
@click.option("--cluster-name", default="dev", show_default=True, help="Hazelcast's cluster name.")
@click.option(
    "--key-file",
    metavar="FILE",
    help="The path of the member's own key on its machine (imap-wal keys new). For tcp:// "
    "endpoints.",
)
@click.option(
    "--agent-key",
    metavar="KEY",
    help="The agent's public key (imap-wal keys show), or its .pub file.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="The path of the cluster's token on the member's machine (imap-wal keys token).",
)
def config(
    agent: str,
    maps: tuple[str, ...],
    transient: tuple[str, ...],
    queues: tuple[str, ...],
    ringbuffers: tuple[str, ...],
    topics: tuple[str, ...],
    cluster_name: str,
    key_file: str | None,
    agent_key: str | None,
    token_file: str | None,
) -> None:
    """Print a hazelcast.yaml to paste.

    \b
    Examples:
      imap-wal plugin config > hazelcast.yaml
      imap-wal plugin config --transient 'cache-*' --queue jobs
      imap-wal plugin config --agent tcp://127.0.0.1:7701 --map orders --map 'session-*'
      imap-wal plugin config --agent tcp://10.0.0.5:7701 --key-file member-1.key \\
        --agent-key agent-1.pub
    """
    from imap_wal.agent.access.admission import is_loopback

    if bool(key_file) != bool(agent_key):
        raise click.UsageError(
            "--key-file and --agent-key belong together: the member's own key, and the "
            "agent's public one"
        )
    if agent.startswith("tcp://") and not key_file and not is_loopback(agent):
        raise click.UsageError(
            f"an agent at {agent} accepts only connections with keys: give --key-file and "
            "--agent-key"
        )
    for name in maps:
        if name.startswith("__") and name not in hazelcast_yaml.OWN_MAPS:
            raise click.UsageError(
                f"--map {name}: maps whose names begin with __ are Hazelcast's own; of them, "
                f"{' and '.join(hazelcast_yaml.OWN_MAPS)} can be durable"
            )
    settings = {
        "durable-queues": ", ".join(queues),
        "durable-ringbuffers": ", ".join(ringbuffers),
        "durable-topics": ", ".join(topics),
        "agent-key-file": key_file,
        "agent-public-key": agent_key and public_key(agent_key),
        "cluster-token-file": token_file,
    }
    properties = {name: value for name, value in settings.items() if value}
    out.raw(
        hazelcast_yaml.to_paste(maps or ("*",), transient, agent, cluster_name, properties),
        nl=False,
    )
