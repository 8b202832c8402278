"""The cost of the connection between a member and its agent: a Unix socket, TCP on the loopback
address, and TCP with keys (CURVE), alternately in one run. The same member, agent and
durability."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.member import agent, member
from benchmarks.rows import compared
from imap_wal.agent.access import keys
from imap_wal.agent.access.peers import Peer, Right
from imap_wal.agent.transport.gate import new_pair

WAYS = ("Unix socket", "TCP", "TCP with keys")
# `os`: without disk syncs, so that only the connection differs.
DURABILITY = "os"
LOADS: dict[str, dict[str, Any]] = {
    "1 caller of 100 B": {"callers": 1, "bytes": 100},
    "64 callers of 100 B": {"callers": 64, "bytes": 100},
    "2 callers of 1 MB": {"callers": 2, "bytes": 1_000_000, "keys": 100},
}


def run(rounds: int, seconds: int) -> list[dict[str, Any]]:
    """`set` by one member, for each load and connection."""
    rates: dict[tuple[str, str], list[float]] = {}
    notes: dict[tuple[str, str], str] = {}
    for _ in range(rounds):
        for load, options in LOADS.items():
            for way in WAYS:
                with tempfile.TemporaryDirectory() as name, _agent(way, Path(name)) as properties:
                    found = member(
                        mode="set",
                        seconds=seconds,
                        warmup=seconds,
                        store="wal",
                        **options,
                        **properties,
                    )
                if found["hung"] or found["errors"]:
                    raise RuntimeError(f"{way}, {load}: {found}")
                rates.setdefault((load, way), []).append(found["sets_per_second"])
                notes[load, way] = f"p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms"
    return [
        compared(
            f"member set, {load}, {way}",
            seen,
            rates[load, WAYS[0]],
            "the Unix socket",
            notes[load, way],
        )
        for (load, way), seen in rates.items()
    ]


@contextmanager
def _agent(way: str, folder: Path) -> Iterator[dict[str, str]]:
    """A running agent; yields the member's properties for it."""
    if way == "Unix socket":
        with agent(folder, DURABILITY) as endpoint:
            yield {"property__agent": endpoint}
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    settings: dict[str, str] = {}
    properties = {"property.agent": endpoint}
    if way == "TCP with keys":
        own, client = new_pair("agent"), new_pair("member")
        for pair in (own, client):
            keys.write_new(folder / f"{pair.name}.key", pair.text(), 0o600)
        keys.write_clients(
            folder / "clients.toml", {client.public: Peer(client.name, frozenset(Right))}
        )
        settings = {"key": str(folder / "agent.key"), "clients": str(folder / "clients.toml")}
        properties |= {
            "property.agent-key-file": str(folder / "member.key"),
            "property.agent-public-key": own.public,
        }
    with agent(folder, DURABILITY, endpoint=endpoint, **settings):
        yield properties
