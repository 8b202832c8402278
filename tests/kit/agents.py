"""An agent in its own process, and the contents of its log."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from imap_wal import entry as entries
from imap_wal import format
from imap_wal.agent.config import AgentConfig
from imap_wal.context import open_context
from imap_wal.entry import KEY, ORDER, VALUE
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import Settings
from storage_backends import open_store
from storage_backends.faults import Fault
from tests.agent.harness import serve_in_process, serve_until_fault
from tests.support import segments

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["imap_wal.agent.server", "imap_wal.retention.archive", "tests.agent.harness"]
)


def logged(settings: AgentConfig) -> list[tuple[str, Any, tuple[int, ...]]]:
    """Every entry in the log: key, value, order."""
    store = open_store(settings.url)
    rows = [
        row
        for path in segments(store)
        for frame in SegmentReader(store, path).whole_frames()
        if frame.kind == format.ENTRIES
        for row in entries.rows(frame.payload)
    ]
    return [(row[KEY].decode(), row[VALUE] and row[VALUE].decode(), row[ORDER]) for row in rows]


def live(settings: AgentConfig, name: str = "orders") -> dict[str, str]:
    """What a restore of the cluster returns."""
    view = MaterializedView(
        ClusterLog(open_context(settings.url), settings.namespace, settings.cluster),
        Settings(),
    )
    view.catch_up()
    found = {
        row[KEY].decode(): row[VALUE].decode()
        for rows in view.rows(name)
        for row in rows
        if row[VALUE] is not None
    }
    view.close()
    return found


class Process:
    """An agent in its own process."""

    def __init__(
        self,
        settings: AgentConfig,
        fault: Fault | None = None,
        until: Callable[..., None] = serve_until_fault,
    ) -> None:
        """`until`: what the process runs if there is a fault."""
        ours, theirs = _context.Pipe(duplex=False)
        arguments = (settings, theirs) if fault is None else (settings, theirs, fault)
        self.process = _context.Process(
            target=serve_in_process if fault is None else until, args=arguments
        )
        self.process.start()
        theirs.close()
        assert ours.poll(60), "the agent does not start"
        assert ours.recv_bytes() == b"ready"

    def end(self, number: int) -> int | None:
        """Send a signal; the exit code."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        return self.wait()

    def wait(self) -> int | None:
        self.process.join(60)
        return self.process.exitcode
