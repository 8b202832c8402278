"""A reader saw frames that were not synced, a power loss removed them, and the next open cut them
off."""

from __future__ import annotations

import pytest

from imap_wal import format
from imap_wal.context import Context
from imap_wal.errors import CorruptLog
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from storage_backends.memory import MemoryStore
from tests.support import node_log, overwrite, row, segments


def test_a_view_drops_what_an_open_cut_off(memory: MemoryStore) -> None:
    """The view had merged a frame that an open then cut off. It requested the frame again and
    again, and reported the log as corrupt."""
    log = node_log(memory)
    log.write(format.ENTRIES, 1, [row("safe", "1", 1)])
    log.sync()
    before = memory.read(segments(memory)[0])
    log.write(format.ENTRIES, 1, [row("lost", "1", 2)])
    view = MaterializedView(ClusterLog(Context(memory), "default", "embedded"), Settings())
    view.catch_up()
    assert sum(map(len, view.keys("m"))) == 2
    overwrite(memory, segments(memory)[0], before)
    new = node_log(memory, takeover=True)
    new.write(format.ENTRIES, 1, [row("new", "1", 3)])
    new.sync()
    view.catch_up()
    assert sorted(key for keys in view.keys("m") for key in keys) == [b"new", b"safe"]
    overwrite(memory, segments(memory)[0], before[:-1])
    with pytest.raises(CorruptLog):  # damage is still an error
        MaterializedView(ClusterLog(Context(memory), "default", "embedded"), Settings()).catch_up()
    view.close()
