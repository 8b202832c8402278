"""A log that is removed while it is read: what was read before needs no other file."""

from __future__ import annotations

import pytest

from imap_wal.format import START
from imap_wal.read.scan_list import cluster_scans
from imap_wal.rewrite.prune import prune
from storage_backends import NotFound
from storage_backends.memory import MemoryStore
from tests.histories import put
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
