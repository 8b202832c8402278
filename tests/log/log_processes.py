"""Functions that run in other processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from imap_wal import log
from imap_wal.log import LogReader

context = get_context("forkserver")
context.set_forkserver_preload(
    ["imap_wal", "imap_wal.retention.archive", "tests.log.log_processes"]
)


def tail_until(url: str, start: str, last: Any, pipe: Connection) -> None:
    """Send the position and value of every record from `start` on, until the one whose value is
    `last`."""
    stop = threading.Event()
    for record in LogReader(url).tail(start, poll_s=0.002, stop=stop):
        pipe.send((str(record.position), record.entry.value))
        if record.entry.value == last:
            stop.set()
    pipe.close()


def write_until_killed(url: str, pipe: Connection) -> None:
    """Append numbers without end, and send the position of each."""
    opened = log.open(url, segment_bytes=2000)
    number = 0
    while True:
        pipe.send(str(opened.append("m", (b"k", b"%d" % number))))
        number += 1


def append_one(url: str, value: bytes, pipe: Connection) -> None:
    """Take over, append, send the position, close."""
    with log.open(url, takeover=True) as opened:
        pipe.send(str(opened.append("m", (b"k", value))))


@contextmanager
def child(work: Any, *arguments: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """A process that runs `work(*arguments, pipe)`, and our end of the pipe."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        ours.close()
        process.join(20)
        if process.is_alive():
            process.kill()
            process.join()
