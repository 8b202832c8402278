"""The configuration of a Hazelcast member: its network, and maps with the plug-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FACTORY = "io.imapwal.hazelcast.member.WalMapStoreFactory"
# Timers decide when partition tables are exchanged and clusters are formed. Hazelcast's defaults
# suit data centres; these suit one machine.
QUICK_MEMBER = {
    "hazelcast.phone.home.enabled": "false",
    "hazelcast.socket.bind.any": "false",
    "hazelcast.logging.type": "jdk",
    "hazelcast.wait.seconds.before.join": "0",
    "hazelcast.max.wait.seconds.before.join": "1",
    "hazelcast.operation.thread.count": "16",
    "hazelcast.shutdownhook.enabled": "false",
}


def member_config(
    cluster: str,
    port: int,
    members: Sequence[int | str],
    maps: Mapping[str, Any],
    properties: Mapping[str, str] = QUICK_MEMBER,
    announced: str = "",
) -> dict[str, Any]:
    """`members`: ports, or addresses. `announced`: the address that others use, with the host that
    this member binds."""
    host = announced.partition(":")[0] or "127.0.0.1"
    network: dict[str, Any] = {
        "port": {"port": port, "auto-increment": False},
        "interfaces": {"enabled": True, "interfaces": ["127.0.0.1"]},
        "join": {
            "auto-detection": {"enabled": False},
            "multicast": {"enabled": False},
            "tcp-ip": {
                "enabled": True,
                "member-list": [
                    each if isinstance(each, str) else f"127.0.0.1:{each}" for each in members
                ],
            },
        },
    }
    if host != "127.0.0.1":  # a loopback address that no interface lists must be named otherwise
        network |= {"interfaces": {"enabled": False}, "public-address": announced}
        properties = {**properties, "hazelcast.local.localAddress": host}
    return {
        "hazelcast": {
            "cluster-name": cluster,
            "properties": dict(properties),
            "network": network,
            "map": dict(maps),
        }
    }


def logged_map(
    endpoint: str,
    properties: Mapping[str, str] | None = None,
    *,
    store: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A map's section with the plug-in in it; `more` with _ for -."""
    map_store = {
        "enabled": True,
        "initial-mode": "EAGER",
        "factory-class-name": FACTORY,
        "write-delay-seconds": 0,
        "offload": False,
        **(store or {}),
        "properties": {"agent": endpoint, **(properties or {})},
    }
    return {
        "map-store": map_store,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
