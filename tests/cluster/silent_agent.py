"""An agent that does not answer an append which holds the word `unanswered`: it is durable, and the
member does not hear of it. Run as a program, with a configuration file."""

from __future__ import annotations

import sys

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent, Pending, run

_answer = Agent._answer


def answer(agent: Agent, pending: list[Pending]) -> None:
    _answer(agent, [each for each in pending if each.batch is None or not any(b"unanswered" in piece for piece in each.batch.payload)])


Agent._answer = answer  # type: ignore[method-assign]
run(AgentConfig.from_toml(sys.argv[1]))
