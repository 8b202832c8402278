"""An agent over TCP with keys, and its clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imap_wal.agent.access import keys
from imap_wal.agent.access.keys import KeyPair
from imap_wal.agent.access.peers import Peer, Right
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.transport.gate import new_pair
from tests.agent.harness import NamedClient, Plugin

MEMBER, READER, STRANGER = new_pair("member-1"), new_pair("reader"), new_pair("stranger")
AGENT = new_pair("agent-1")


def write_clients(folder: Path, **rights: set[Right]) -> None:
    pairs = {"member": MEMBER, "reader": READER}
    keys.write_clients(
        folder / "clients.toml",
        {
            pairs[name].public: Peer(pairs[name].name, frozenset(given))
            for name, given in rights.items()
        },
    )


@contextlib.contextmanager
def plugin(
    settings: AgentConfig,
    key: KeyPair | None,
    agent_key: str = AGENT.public,
    timeout_ms: int = 10_000,
    **about: Any,
) -> Iterator[Plugin]:
    connected = Plugin(settings.endpoint, **about)
    connected.client.close()
    connected.client = NamedClient(settings.endpoint, timeout_ms, key, agent_key)
    try:
        yield connected
    finally:
        connected.close()


def refused(peer: Plugin, kind: str, *fields: Any, payload: bytes = b"") -> str:
    header, _ = peer.client.ask(kind, *fields, payload=payload)
    assert header[0] == "error", header
    assert header[2] == "not-allowed", header
    return str(header[3])
