"""The rights of an agent's peers, and the right that each request needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from imap_wal.agent.requests import (
    Append,
    Beat,
    Bye,
    Hello,
    Malformed,
    Metadata,
    Request,
    Stat,
    View,
    kind_of,
)
from imap_wal.errors import NotAllowed


class Right(StrEnum):
    """`CLAIM`: to claim the log for a new cluster or for a view of a cluster."""

    READ = "read"
    WRITE = "write"
    CLAIM = "claim"


ALL = frozenset(Right)


@dataclass(frozen=True, slots=True)
class Peer:
    """An admitted client. `name`: for log lines and errors."""

    name: str
    rights: frozenset[Right]


LOCAL = Peer("local", ALL)
"""Every peer that an endpoint without keys admits."""
UNKNOWN = Peer("a revoked key", frozenset())


def needed(request: Request | Malformed) -> Right | None:
    """The right that a request needs; None: every admitted peer may send it. A hello that claims
    the log needs `CLAIM` too; `claims.py` checks that."""
    match request:
        case Append() | Metadata():
            return Right.WRITE
        case Hello():
            return Right.WRITE if request.about.purpose == "write" else Right.READ
        case View():
            return Right.CLAIM
        case Stat() | Beat() | Bye() | Malformed():
            return None
        case _:
            return Right.READ


def demand(peer: Peer, request: Request | Malformed) -> None:
    """Raises `NotAllowed` unless the peer may send this request."""
    if peer is LOCAL:
        return
    right = needed(request)
    if not peer.rights or (right is not None and right not in peer.rights):
        raise NotAllowed(
            f"{peer.name} has no right {str(right or 'to connect')!r}, which "
            f"{kind_of(request)} needs; the agent's file of clients grants it"
        )
