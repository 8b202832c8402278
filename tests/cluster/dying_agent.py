"""An agent that kills itself at the worst moment: when a change contains the word `fatal-before`,
before it is appended; with `fatal-after`, when it is durable and not yet acknowledged. Run as a
program, with a configuration file."""

from __future__ import annotations

import os
import signal
import sys

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent, Pending, run
from imap_wal.agent.transport import Message

_append, _answer = Agent._append, Agent._answer


def append(agent: Agent, message: Message, kind: str, pending: list[Pending]) -> None:
    if b"fatal-before" in message.payload:
        os.kill(os.getpid(), signal.SIGKILL)
    _append(agent, message, kind, pending)


def answer(agent: Agent, pending: list[Pending]) -> None:
    if any(b"fatal-after" in piece for each in pending for piece in each.batch.payload):
        os.kill(os.getpid(), signal.SIGKILL)
    _answer(agent, pending)


Agent._append, Agent._answer = append, answer  # type: ignore[method-assign]
run(AgentConfig.from_toml(sys.argv[1]))
