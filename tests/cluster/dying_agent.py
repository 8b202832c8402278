"""An agent that kills itself at the worst moment: when a change contains the word `fatal-before`,
before it is appended; with `fatal-after`, when it is durable and not yet acknowledged. Run as a
program, with a configuration file."""

from __future__ import annotations

import os
import signal
import sys

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.handler import RequestHandler
from imap_wal.agent.pending import Pending
from imap_wal.agent.process import run
from imap_wal.agent.requests import Append, Metadata
from imap_wal.agent.transport.router import Message

_append, _answer = RequestHandler._append, RequestHandler._answer


def append(
    handler: RequestHandler, message: Message, request: Append | Metadata, pending: list[Pending]
) -> None:
    if b"fatal-before" in message.payload:
        os.kill(os.getpid(), signal.SIGKILL)
    _append(handler, message, request, pending)


def answer(handler: RequestHandler, pending: list[Pending]) -> None:
    durable = [each.batch for each in pending if each.batch is not None]
    if any(b"fatal-after" in piece for batch in durable for piece in batch.payload):
        os.kill(os.getpid(), signal.SIGKILL)
    _answer(handler, pending)


RequestHandler._append = append  # type: ignore[assignment, method-assign]
RequestHandler._answer = answer  # type: ignore[assignment, method-assign]
run(AgentConfig.from_toml(sys.argv[1]))
