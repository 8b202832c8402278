"""Why a request that is sent twice counts once.

A client that loses its connection does not know whether its change is in the log. So each change is
committed together with a record of its request, in the map `REQUESTS` and in the same frame:

    client (16 bytes) → [number of its last request, the answer to it]

The process that serves next finds the record if and only if the change is in the log, and returns
the answer again. A client sends one request at a time, so one record for each client suffices.
"""

from __future__ import annotations

from typing import Any

import msgpack

from imap_wal.embedded.changes import MapState, WriteBatch
from imap_wal.embedded.decisions import Choice, Decision, OutlookOf
from imap_wal.errors import NotAppended
from imap_wal.workers.messages import answer_of

REQUESTS = "imap-wal.requests"
KEPT_MS = 24 * 3600 * 1000
"""A record expires after this time. A client gives up much earlier."""


def once(
    change: WriteBatch, requests: MapState, client: bytes, number: int, now_ms: int
) -> Decision:
    """The change, unless it is in the log already. The answer is that of the change, as a
    message."""

    def choose(outlook_of: OutlookOf) -> Choice:
        record = outlook_of(requests).get(client)
        if record is not None:
            last, answer = msgpack.unpackb(record)
            if last == number:
                return answer, ()
            if last > number:
                raise NotAppended(
                    f"request {number} is older than request {last} of the same client; it was not "
                    "made again"
                )
        changes, answer = [change], None
        if isinstance(change, Decision):
            changes, answer = list(change.decide(outlook_of)), answer_of(change)
            if not changes:
                return answer, ()
        data = msgpack.packb((number, answer))
        return answer, [*changes, WriteBatch(requests, [client], [data], {0: now_ms + KEPT_MS})]

    return Decision(change.state, choose, sum(change.sizes()))


def demand_client(client: Any) -> bytes:
    """Raises ValueError unless it is the id of a client."""
    if type(client) is not bytes or len(client) != 16:
        raise ValueError("the id of a client has 16 bytes")
    return client
