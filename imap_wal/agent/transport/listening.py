"""Opens the socket of an agent, of the kind that its endpoint names."""

from __future__ import annotations

from imap_wal.agent.access.admission import ClientKeys, Users
from imap_wal.agent.bounds import Bounds
from imap_wal.agent.lines import Lines
from imap_wal.agent.transport.endpoint import IPC, EndpointLock
from imap_wal.agent.transport.local import LocalRouter
from imap_wal.agent.transport.network import NetworkRouter
from imap_wal.agent.transport.router import Router
from imap_wal.clock import Clock


def listen(
    lock: EndpointLock,
    bounds: Bounds,
    rules: Users | ClientKeys | None,
    clock: Clock,
    lines: Lines,
) -> Router:
    """Listen at the endpoint of `lock`; the router's `close` releases it. `rules`: those of the
    endpoint's `Access`. Raises `InvalidSetting` if it cannot listen there."""
    if lock.endpoint.startswith(IPC):
        assert not isinstance(rules, ClientKeys)
        return LocalRouter(lock, bounds, rules, clock, lines)
    assert not isinstance(rules, Users)
    return NetworkRouter(lock.endpoint, bounds, rules, clock, lines)
