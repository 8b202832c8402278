"""The process of an agent: what it sets for the whole process, what it warns about, and the signals
that stop it."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from types import FrameType

import structlog

from imap_wal.agent.bounds import raise_file_limit, wanted_files
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent
from imap_wal.errors import StorageUnavailable
from storage_backends import StorageError, with_url
from storage_backends.ownership import doubts

SWITCH_S = 0.0005
"""How long a thread may compute while others wait for the interpreter. A merge computes for
seconds, and a hello needs the interpreter after each of its hundred file operations. With Python's
default of 5 ms, a member with little processor time gave up before its first answer."""

KEPT_BYTES, LARGE_BYTES = 32 * 1024 * 1024, 32 * 1024 * 1024
"""The C library keeps this much free memory, and returns larger blocks to the system at once.
Otherwise each value of 1 MB takes new pages several times, and the system fills each with zeros:
that took more time than all the rest (2.1 ms of 3)."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt(3)."""

_log = structlog.get_logger("imap_wal.agent")


def run(config: AgentConfig, ready: Callable[[Agent], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises the errors of opening the log, and
    `StorageUnavailable` if the storage fails."""
    raise_file_limit(config.connections_max)
    sys.setswitchinterval(SWITCH_S)
    _keep_memory()
    try:
        agent = Agent(config)
    except StorageError as error:
        raise StorageUnavailable(with_url(config.url, error)) from error
    for doubt in (*doubts(config.url), *doubts(config.wal_dir)):
        _log.warning("storage of another user", doubt=doubt)
    for doubt in config.doubts:
        _log.warning("open endpoint", doubt=doubt)
    if not agent.bounds.certain:
        doubt = (
            "many attempts to connect could use up all file descriptors, and the log would then "
            "fail until those connections end; raise the limit (ulimit -n)"
        )
        limits = {
            "files": agent.bounds.files,
            "wanted": wanted_files(config.connections_max),
            "connections": agent.bounds.connections,
        }
        _log.warning("few open files are allowed", doubt=doubt, **limits)

    def on_signal(number: int, frame: FrameType | None) -> None:
        agent.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    agent.serve(lambda: ready(agent) if ready else None)


def _keep_memory() -> None:
    """Keep some free memory. Other C libraries than glibc have no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
