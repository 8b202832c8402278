"""A member's configuration: for `plugin config`, and for the members of `node start`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

FACTORY = "io.imapwal.hazelcast.member.WalMapStoreFactory"
OWN_MAPS = ("__sql.catalog", "__jet.*")
"""Hazelcast's own maps that can be durable, as they are named: mappings of SQL, and jobs."""
SEATUNNEL_FACTORY = "io.imapwal.seatunnel.ImapWalMapStoreFactory"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a YAML string


def _plugin(
    agent: str, durable: Sequence[str], transient: Sequence[str], properties: Mapping[str, str]
) -> str:
    """The plug-in's properties of a member; they are for every map, whatever section it has."""
    lists = {
        "agent": agent,
        "durable-maps": ", ".join(durable),
        **({"transient-maps": ", ".join(transient)} if transient else {}),
        **properties,
    }
    return "\n".join(f"    imap-wal.{name}: {_quoted(value)}" for name, value in lists.items())


_PROPERTIES = """\
  properties:
    # A store waits for the disk; with few operation threads, everything else would wait too.
    hazelcast.operation.thread.count: "64"
"""

_TRANSIENT = """\
    # Maps that are not durable, even if the list above matches them:
    # imap-wal.transient-maps: "cache-*"
"""

_CLAIMS = """\
    # The secret without which no cluster can claim the log (imap-wal keys token):
    # imap-wal.cluster-token-file: /etc/imap-wal/eu.token
"""

_FILTER = """\
  serialization:
    java-serialization-filter:              # reading a Java-serialised value runs code
      defaults-disabled: false              # allowed: classes java*, com.hazelcast.*; arrays
      whitelist:
        package:
          - io.imapwal.hazelcast            # exceptions that members send each other
          - io.imapwal.wire                 # their causes
          # - com.acme.model                # yours, if they are only java.io.Serializable
      blacklist:
        class:
          - java.net.URL                    # in a hash table, it sends a DNS query
        prefix:
          - java.rmi.
          - javax.management.
          - javax.naming.
"""


_STRUCTURES = {
    "durable-queues": "Queues",
    "durable-ringbuffers": "Ringbuffers",
    "durable-topics": "Reliable topics",
}


def _structures(properties: Mapping[str, str]) -> str:
    return "".join(
        f'    # imap-wal.{name}: "*"{"":<{22 - len(name)}}# {kind} that are durable\n'
        for name, kind in _STRUCTURES.items()
        if name not in properties
    )


def to_paste(
    durable: Sequence[str],
    transient: Sequence[str],
    agent: str,
    cluster_name: str,
    properties: Mapping[str, str],
) -> str:
    """A whole hazelcast.yaml with comments. `durable`, `transient`: patterns of map names.
    `properties`: additional ones of the plug-in."""
    more = ("" if transient else _TRANSIENT) + (
        "" if "cluster-token-file" in properties else _CLAIMS
    )
    return f"""\
# A Hazelcast member (5.5, 5.6 or 5.7) whose maps are durable.
#   classpath:   hazelcast.jar and the jar that `imap-wal plugin path` prints
#   beside it:   imap-wal agent --config agent.toml      (endpoint = {_quoted(agent)})
# {_summary(durable, transient)}
hazelcast:
  cluster-name: {_quoted(cluster_name)}
{_PROPERTIES}\
    # For every map, whatever section of `map:` it has:
{_plugin(agent, durable, transient, properties)}
{more}\
{_structures(properties)}\
    # Sets, and queues and other structures in no list, are not durable: warn, or refuse them
    imap-wal.durable-structures: warn
    # imap-wal.timeout-ms: "10000"          # longest wait for one acknowledgement
    # imap-wal.agent-timeout-ms: "2000"     # an agent that does not answer for so long hangs
    # Longest wait of an operation for a partition whose owner was lost:
    # imap-wal.settle-timeout-ms: "10000"
    # Always ask the log for keys that are not in memory; not needed for eviction:
    # imap-wal.read-through: "true"
{_FILTER}\
  # Members on one machine that find each other without multicast:
  # network:
  #   port:
  #     port: 5701
  #   join:
  #     auto-detection:
  #       enabled: false
  #     multicast:
  #       enabled: false
  #     tcp-ip:
  #       enabled: true
  #       member-list: [127.0.0.1:5701, 127.0.0.1:5702]
"""


def _summary(durable: Sequence[str], transient: Sequence[str]) -> str:
    """The lists as a sentence. With "*", there are no other maps."""
    rest = "" if "*" in durable else "; any other map is not durable, and is reported"
    return f"Durable maps: {', '.join(durable)}; transient: {', '.join(transient) or 'none'}{rest}"


def to_run(
    cluster_name: str, port: int, ports: Sequence[int], agent: str, properties: Mapping[str, str]
) -> str:
    """One member of `node start`: TCP-IP join on the loopback address, every map durable."""
    members = ", ".join(f"127.0.0.1:{port}" for port in ports)
    return f"""\
hazelcast:
  cluster-name: {_quoted(cluster_name)}
{_PROPERTIES}\
{_plugin(agent, ["*"], [], properties)}
    hazelcast.phone.home.enabled: "false"
    # The default is for data centres; these members are on one machine.
    hazelcast.wait.seconds.before.join: "0"
    hazelcast.max.wait.seconds.before.join: "1"
    hazelcast.socket.bind.any: "false"
    hazelcast.logging.type: jdk
  network:
    port:
      port: {port}
      auto-increment: false
    interfaces:
      enabled: true
      interfaces: [127.0.0.1]
    join:
      auto-detection:
        enabled: false
      multicast:
        enabled: false
      tcp-ip:
        enabled: true
        member-list: [{members}]
"""
