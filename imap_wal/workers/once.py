"""Why a request that is sent twice counts once.

A client that loses its connection does not know whether its change is in the log. So each change is
committed together with a record of its request, in the map `REQUESTS` and in the same frame:

    client (16 bytes) → [number of its last request, the results of its changes]

The process that serves next finds the record if and only if the change is in the log, and returns
the answer again. A client sends one request at a time, so one record for each client suffices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from imap_wal.embedded.changes import MapState, WriteBatch
from imap_wal.embedded.decisions import Choice, Decision, OutlookOf
from imap_wal.errors import NotAppended
from imap_wal.workers.messages import result_of

REQUESTS = "imap-wal.requests"
KEPT_MS = 24 * 3600 * 1000
"""A record expires after this time. A client gives up much earlier."""


def once(
    steps: Sequence[WriteBatch], requests: MapState, client: bytes, number: int, now_ms: int
) -> Decision:
    """The changes of a request, unless they are in the log already. A step sees those before it.
    The answer is the list of their results, as a message."""

    def choose(outlook_of: OutlookOf) -> Choice:
        record = outlook_of(requests).get(client)
        if record is not None:
            last, results = msgpack.unpackb(record)
            if last == number:
                return results, ()
            if last > number:
                raise NotAppended(
                    f"request {number} is older than request {last} of the same client; it was not "
                    "made again"
                )
        changes: list[WriteBatch] = []
        results = []
        for index, step in enumerate(steps):
            made = step.decide(outlook_of) if isinstance(step, Decision) else [step]
            result = result_of(step)
            results.append(result)
            if len(result) == 1:  # not an error
                changes += made
                if index + 1 < len(steps):
                    for change in made:
                        outlook_of(change.state).add(change)
        if not changes:
            return results, ()
        data = msgpack.packb((number, results))
        return results, [*changes, WriteBatch(requests, [client], [data], {0: now_ms + KEPT_MS})]

    return Decision(steps[0].state, choose, sum(size for step in steps for size in step.sizes()))


def demand_client(client: Any) -> bytes:
    """Raises ValueError unless it is the id of a client."""
    if type(client) is not bytes or len(client) != 16:
        raise ValueError("the id of a client has 16 bytes")
    return client
