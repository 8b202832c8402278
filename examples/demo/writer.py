"""The process that the demo kills. It plays steps into maps, with two producers. When a change has
returned, and never before, it writes an acknowledgement to stdout.

    python -m examples.demo.writer embedded URL   STEPS START START END END
    python -m examples.demo.writer cluster  HOSTS STEPS START START END END

Each producer plays its steps from START to before END. If that is not the last one, the process
then waits to be killed: on a busy machine it could otherwise play all of them before its parent
reads that enough are acknowledged.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from examples.demo.flights import Step
from storage_backends.extras import needs

ACK = struct.Struct("<BI")
"""Producer, number of the step."""

NAMESPACE, CLUSTER, NODE = "demo", "flights", "n1"
WINDOW = 64
"""The number of unanswered steps of one producer. Embedded: one."""


def acknowledge(producer: int, number: int) -> None:
    os.write(1, ACK.pack(producer, number))  # shorter than PIPE_BUF: never torn, never mixed


def embedded(url: str, steps: list[list[Step]], starts: list[int], is_killed: bool) -> None:
    """Plays each step as a call that returns when its change is on disk."""
    import imap_wal

    with imap_wal.open(url, namespace=NAMESPACE, cluster=CLUSTER, node=NODE) as store:

        def produce(producer: int) -> None:
            for number in range(starts[producer], len(steps[producer])):
                name, changes = steps[producer][number]
                entries = store.map(name)
                if len(changes) == 1 and changes[0][1] is None:
                    entries.pop(changes[0][0], None)
                else:
                    entries.update(changes)
                acknowledge(producer, number)

        _run(produce, is_killed)


def cluster(hosts: str, steps: list[list[Step]], starts: list[int], is_killed: bool) -> None:
    """Sends steps before earlier ones have returned, unless they use a key that is in flight.
    Raises `MissingExtra` if a library is not installed."""
    with needs("hazelcast"):
        from hazelcast.core import HazelcastJsonValue

    from rewrite_cli.local_cluster.clients import connect

    client = connect(hosts.split(","))

    def produce(producer: int) -> None:
        waiting: deque[tuple[int, Any, frozenset[str]]] = deque()
        moving: dict[str, int] = {}

        def await_oldest() -> None:
            number, future, keys = waiting.popleft()
            future.result()
            acknowledge(producer, number)
            for key in keys:
                moving[key] -= 1
                if not moving[key]:
                    del moving[key]

        for number in range(starts[producer], len(steps[producer])):
            name, changes = steps[producer][number]
            keys = frozenset(key for key, _ in changes)
            while len(waiting) >= WINDOW or not moving.keys().isdisjoint(keys):
                await_oldest()
            entries = client.get_map(name)
            future = (
                entries.delete(changes[0][0])
                if changes[0][1] is None
                else entries.put_all({key: HazelcastJsonValue(value) for key, value in changes})
            )
            for key in keys:
                moving[key] = moving.get(key, 0) + 1
            waiting.append((number, future, keys))
        while waiting:
            await_oldest()

    _run(produce, is_killed)
    client.shutdown()


def _run(produce: Callable[[int], None], is_killed: bool) -> None:
    """One thread per producer; the first error ends the process. `is_killed`: then wait for the
    kill, or for the end of the parent."""
    errors: list[BaseException] = []

    def guarded(producer: int) -> None:
        try:
            produce(producer)
        except Exception as error:  # noqa: BLE001  # reported to the parent below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(producer,)) for producer in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    parent = os.getppid()
    while is_killed and os.getppid() == parent:
        time.sleep(0.1)


def main() -> None:
    kind, target, file, *numbers = sys.argv[1:]
    first_start, second_start, *ends = map(int, numbers)
    steps = msgpack.unpackb(Path(file).read_bytes(), use_list=False)
    is_killed = ends < [len(each) for each in steps]
    steps = [each[:end] for each, end in zip(steps, ends, strict=True)]
    {"embedded": embedded, "cluster": cluster}[kind](
        target, steps, [first_start, second_start], is_killed
    )


if __name__ == "__main__":
    main()
