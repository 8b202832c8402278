"""Why a request that is sent twice counts once.

A client that loses its connection does not know whether its change is in the log. So each change is
committed together with a record of its request, in the map `REQUESTS` and in the same frame:

    client (16 bytes) → [number of its last request, place of this record, results of its changes]
    `FORGOTTEN`       → [0, place of the last record that was removed, []]

The process that serves next finds the record if and only if the change is in the log, and returns
the answer again. A client sends one request at a time, so one record for each client suffices.

Places rise in the order of the log. A process knows its newest record that is durable, and says at
each connection that the log must have it, or one after it of the same client. A log without it has
removed it, and then remembers a later place; otherwise an older copy has replaced the log. No clock
decides that: records do not expire. A client that closes removes its own. Of too many, the oldest
are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import msgpack

from imap_wal.embedded.changes import WriteBatch
from imap_wal.embedded.decisions import Choice, Decision, OutlookOf
from imap_wal.embedded.store import Store
from imap_wal.errors import NotAppended
from imap_wal.workers.map_messages import Acknowledged, result_of

REQUESTS = "imap-wal.requests"
FORGOTTEN = b""
RECORDS_MAX = 4096
"""If there are more records, the older half is removed."""


class _Record(NamedTuple):
    """The last request of a client; 0: it has none."""

    number: int = 0
    place: int = 0
    results: Sequence[list[object]] = ()

    @classmethod
    def of(cls, data: bytes | None) -> Self:
        return cls() if data is None else cls(*msgpack.unpackb(data))


class Requests:
    """The records of requests in the log of a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._state = store.map(REQUESTS, raw=True)._state
        self._changes = store.changes
        settings = store.writer.log.settings
        self._keeps_all = settings.durability in ("always", "os") and (
            not settings.acknowledges_early
        )
        """Whether the death of the process that serves loses nothing acknowledged."""
        self._place = max((_Record.of(data).place for data in self._state.rows(0)[1]), default=0)

    def once(self, steps: Sequence[WriteBatch], client: bytes, number: int) -> Decision:
        """The changes of a request, unless they are in the log already. A step sees the changes of
        the steps before it. The answer is the place of the record (0 if there is none, or if it is
        not durable), and the list of the results of the steps, as a message."""

        def choose(outlook_of: OutlookOf) -> Choice:
            last = _Record.of(outlook_of(self._state).get(client))
            if last.number == number:
                return (self._durable(last.place), last.results), ()
            if last.number > number:
                raise NotAppended(
                    f"request {number} is older than request {last.number} of the same client; it "
                    "was not made again"
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
                return (0, results), ()
            self._place += 1  # changes are published in the order in which they are chosen
            record = WriteBatch(self._state, [client], [_packed(number, self._place, results)])
            return (self._durable(self._place), results), [*changes, record]

        size = sum(size for step in steps for size in step.sizes())
        return Decision(steps[0].state, choose, size)

    def _durable(self, place: int) -> int:
        return place if self._keeps_all else 0

    def lacks(self, acknowledged: Acknowledged) -> bool:
        """Whether this log never had a record, and none after it of the same client."""
        place, client, number = acknowledged
        is_there = self._get(client).number >= number
        return not is_there and self._get(FORGOTTEN).place < place

    def _get(self, client: bytes) -> _Record:
        return _Record.of(self._state.get(client, 0))

    def forget(self, clients: Sequence[bytes]) -> None:
        """Remove the records of clients that send no more. Raises the errors of a change.

        `FORGOTTEN` keeps its place: no other client may take this for the removal of its record.
        """
        gone = [client for client in clients if client and self._state.get(client, 0) is not None]
        if gone:
            self._changes.change([WriteBatch(self._state, gone, [None] * len(gone))])

    def forget_oldest(self) -> None:
        """Remove the older half of too many records. Raises the errors of a change."""
        if self._state.size(0) <= RECORDS_MAX:
            return
        rows = zip(*self._state.rows(0), strict=True)
        records = sorted((_Record.of(data).place, client, data) for client, data in rows if client)
        oldest = records[: len(records) // 2]

        def choose(outlook_of: OutlookOf) -> Choice:
            outlook = outlook_of(self._state)
            place = max(oldest[-1][0], _Record.of(outlook.get(FORGOTTEN)).place)
            gone = [client for _, client, data in oldest if outlook.get(client) == data]
            # In this order: `lacks` must always find one of the two.
            keys, values = [FORGOTTEN, *gone], [_packed(0, place, ()), *[None] * len(gone)]
            return None, [WriteBatch(self._state, keys, values)]

        self._changes.evaluate([Decision(self._state, choose)])


def _packed(number: int, place: int, results: Sequence[list[object]]) -> bytes:
    data: bytes = msgpack.packb((number, place, results))
    return data
