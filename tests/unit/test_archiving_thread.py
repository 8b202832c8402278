"""The thread that archives a log, look by look."""

from __future__ import annotations

import math
import threading

from imap_wal.settings import Settings
from imap_wal.worker import Worker
from imap_wal.write import maintenance
from imap_wal.write.maintenance import Maintenance
from storage_backends.memory import MemoryStore
from tests.kit.commits import committer
from tests.support import FakeClock


class Waits(threading.Event):
    """Notes for how long it is waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return self.is_set()


def test_the_archiving_thread_pauses_between_two_looks(memory: MemoryStore) -> None:
    """Otherwise it would use a whole processor. Growth of the log ends the pause."""
    clock, archives = FakeClock(), list[float]()
    made = Maintenance(Settings(archive_interval_s=5), clock)
    made._full.wake = pauses = Waits()
    target = committer(memory)
    turn = made._archiving(
        target, lambda: archives.append(clock.monotonic()), lambda: None, at_once=False
    )
    worker = Worker("archiver", turn)
    begin = clock.monotonic()
    for look in range(1, 12):
        assert turn(worker)
        assert pauses.seconds == [maintenance.ARCHIVE_TICK_S] * look
        clock.advance(1)
    assert [round(at - begin) for at in archives] == [5, 10]
    made._full.at = -math.inf
    made.committed(target.log)
    assert pauses.is_set()
