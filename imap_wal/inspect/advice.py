"""Advice on errors for users of the command line. The errors' own advice is for Python programs."""

from __future__ import annotations

from imap_wal.errors import (
    SEGMENT_ADVICE,
    Fenced,
    ImapWalError,
    LogError,
    MissingNode,
    WriterLocked,
)
from imap_wal.manifest.older import MISSING_ADVICE

MISSING = (
    "bring its log back, or leave it out: export, restore and rewrite take --partial; if the node "
    "will not return: `imap-wal forget-node`"
)


def advice(error: ImapWalError) -> str:
    """What a user of the command line can do about an error."""
    match error:
        case WriterLocked() if error.advice == WriterLocked.advice:
            return (
                "stop that process and run the command again (an agent can take over: --takeover)"
            )
        case Fenced():
            return "run the command again, while no other process writes this log"
        case MissingNode() if error.advice == MISSING_ADVICE:
            return MISSING
        case LogError() if error.advice == SEGMENT_ADVICE:
            mend = "bring the file back from a copy, or write a repaired log with `imap-wal repair`"
            return f"`imap-wal verify` shows all damage; {mend}"
        case _:
            return error.advice
