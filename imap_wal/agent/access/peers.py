"""What the peers of an agent may do: rights, and which request needs which."""

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
    """`CLAIM`: to have the log claimed, for a new cluster or for a view of a cluster."""

    READ = "read"
    WRITE = "write"
    CLAIM = "claim"


ALL = frozenset(Right)


@dataclass(frozen=True, slots=True)
class Peer:
    """Somebody who was admitted. `name` is for people."""

    name: str
    rights: frozenset[Right]


LOCAL = Peer("local", ALL)
"""Whoever was admitted to an endpoint without keys."""
UNKNOWN = Peer("a revoked key", frozenset())


def needed(request: Request | Malformed) -> Right | None:
    """The right that a request needs. None: everybody who was admitted may send it. A hello that
    has the log claimed needs `CLAIM` too: `claims.py` knows when."""
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
    """`NotAllowed` unless the peer may send this request."""
    if peer is LOCAL:
        return
    right = needed(request)
    if not peer.rights or (right is not None and right not in peer.rights):
        raise NotAllowed(
            f"{peer.name} has no right {str(right or 'to connect')!r}, which "
            f"{kind_of(request)} needs; the agent's file of clients gives it"
        )
