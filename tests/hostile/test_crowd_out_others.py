"""Attack: use up the time or the memory of an agent, so that others wait or lose what is theirs."""

from __future__ import annotations

import multiprocessing
from contextlib import ExitStack
from pathlib import Path

import pytest

from imap_wal.agent.config import AgentConfig
from tests.agent.harness import config, plugin, serving
from tests.hostile.peers import RawPeer

MB = 1024 * 1024


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


# ---- names of connections ----------------------------------------------------------------------------------------------


def _take_the_next_names(settings: AgentConfig) -> None:
    with serving(settings) as agent, plugin(settings) as member, ExitStack() as opened:
        (name,) = agent._sessions._connections
        first = int.from_bytes(name[1:])
        for number in range(1, 60):
            peer = RawPeer(settings.endpoint, b"\0" + ((first + number) % 2**32).to_bytes(4, "big"))
            opened.callback(peer.close)
        for number in range(60):
            with plugin(settings, uuid=f"other-{number}", member=f"other-{number}") as other:
                other.stat()
        assert member.put(a="1")[0] == "ack"


def test_a_peer_that_takes_the_names_of_later_connections_does_not_end_the_agent(settings: AgentConfig) -> None:
    """libzmq counts names up, and aborts the process at one that a peer has taken."""
    agent = multiprocessing.get_context("spawn").Process(target=_take_the_next_names, args=(settings,))
    agent.start()
    agent.join(60)
    assert agent.exitcode == 0
