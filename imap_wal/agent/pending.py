"""An append that waits for its commit and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from imap_wal.write.ring import CommitRequest


@dataclass(frozen=True, slots=True)
class Pending:
    """An append in the ring, with the data for its answer. Without a batch, it is an answer that
    must be sent after the earlier answers."""

    sender: bytes
    number: int
    first: int = 0
    count: int = 0
    batch: CommitRequest | None = None
    refusal: tuple[str, str] = ("", "")
