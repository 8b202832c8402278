"""A log that is removed while it is read: what was read before needs no other file."""

from __future__ import annotations

import pytest

import imap_wal
from imap_wal.format import START, Position
from imap_wal.manifest.epochs import ids
from imap_wal.read.scan_list import cluster_scans
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from storage_backends import NotFound
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.actors import log_of
from tests.kit.effort import every
from tests.kit.logs import append, cluster, node
from tests.kit.rewrites import run


def test_a_log_removed_up_to_a_reader_is_no_loss(memory: MemoryStore) -> None:
    """The snapshot has more than what was removed; the log still has the rest."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    end = log.end
    log.rotate()
    append(log, put("c", "1", (1, 1, 1, 3)))
    reader = cluster(memory)
    scan = next(iter(cluster_scans(reader.state())))
    run(memory)
    prune(cluster(memory))
    assert log.manifests.read()[1].removed == end
    assert list(reader.replaced(scan, end, None)) == []
    for place in (None, START, end._replace(index=0)):
        with pytest.raises(NotFound, match="its log was removed"):
            reader.replaced(scan, place, None)


@every(2)
@pytest.mark.parametrize("archived", [False, True])
def test_a_log_that_forgot_an_epoch_is_not_another_one(memory: MemoryStore, archived: bool) -> None:
    """A long read was planned before a rewrite, a prune and two opens. It begins again."""

    def write(key: str) -> None:
        with imap_wal.open(memory.url, node="n1", auto_rewrite_percentage=0) as store:
            store.map("m")[key] = 1
            if archived:
                store.archive()

    write("a")
    log = log_of(memory)
    planned = log.state()
    (scan,) = cluster_scans(planned)
    read = planned.marked("n1", Position(1, 1, scan.first.frame, 0))
    write("b")
    write("c")
    rewrite(log, LocalEngine())
    prune(log)
    write("d")
    present = log.node("n1").manifest
    assert read < present.removed and not ids(present.epochs, 1)
    for place in (None, read):
        with pytest.raises(NotFound, match="its log was removed; begin again"):
            log.replaced(scan, place, None)
    assert log.state().plain({"n1": read}) == {"n1": read}
