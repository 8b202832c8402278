"""An agent that does not answer the first append with a word like `unanswered-1`, nor a clear of
the map `unheard`: the change is durable, but the member does not learn it. Run as a program, with a
configuration file."""

from __future__ import annotations

import re
import sys

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.handler import RequestHandler
from imap_wal.agent.pending import Pending
from imap_wal.agent.process import run
from imap_wal.format import CLEARS

_WORD = re.compile(rb"unanswered-\d+")
_answer = RequestHandler._answer
_seen: set[bytes] = set()


def answer(handler: RequestHandler, pending: list[Pending]) -> None:
    loud = []
    for each in pending:
        words = {
            word
            for piece in (each.batch.payload if each.batch is not None else ())
            for word in _WORD.findall(piece)
        }
        if each.batch is not None and each.batch.kind == CLEARS:
            words |= {piece for piece in each.batch.payload if b"unheard" in piece}
        if words <= _seen:
            loud.append(each)
        _seen.update(words)
    _answer(handler, loud)


RequestHandler._answer = answer  # type: ignore[assignment, method-assign]
run(AgentConfig.from_toml(sys.argv[1]))
