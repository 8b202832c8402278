"""Small archives are merged into larger ones, so that a map never has many."""

from __future__ import annotations

from itertools import pairwise

import imap_wal
from imap_wal.context import Context
from imap_wal.format import Position
from imap_wal.log import LogReader
from imap_wal.manifest.list_files import Archive
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.retention.archive_writer import to_absorb
from storage_backends.memory import MemoryStore


def test_thousands_of_archive_runs_leave_few_archives() -> None:
    archives: list[Archive] = []
    written = largest = 0
    for number in range(5000):
        position = Position(1, number + 1, 100, 0)
        taken = to_absorb(archives)
        size = 50_000 + sum(archive.bytes for archive in taken)
        written += size
        first = taken[0].first if taken else position
        archives = [archive for archive in archives if archive not in taken]
        archives.append(Archive("m", f"{number}", first, position, 1, 0, size))
        largest = max(largest, len(archives))
    assert [archive.first for archive in archives] == sorted(archive.first for archive in archives)
    assert all(one.last < two.first for one, two in pairwise(archives)), (
        "only the newest archives are merged"
    )
    assert largest <= 40, "seven of each size"
    assert written <= 8 * 5000 * 50_000, "an entry is written again a few times only"


def test_many_archive_runs_keep_every_entry_exactly_once(
    memory: MemoryStore,
) -> None:
    """Many archive runs lose nothing, and readers see every entry once."""
    written = {}
    with imap_wal.open("memory://", node="n1", storage=memory, preallocate=False) as store:
        for number in range(40):
            store.map("m", raw=True)[b"%d" % number] = written[b"%d" % number] = bytes(1000)
            store.map("other", raw=True)[b"k"] = b"%d" % number
            if number % 5 == 0:
                del store.map("m", raw=True)[b"%d" % number]
                del written[b"%d" % number]
            store.archive()
    manifest = NodeManifestLog(Context(memory), "default/embedded/nodes/n1").read()[1]
    assert len(manifest.archives) <= 2 * 2 * 7
    assert {archive.path for archive in manifest.archives} == {
        file.path for file in memory.list("") if file.path.endswith(".parquet")
    }
    assert (
        sum(archive.tombstones for archive in manifest.archives) == 8
        and sum(archive.records for archive in manifest.archives) == 88
    )
    with imap_wal.open("memory://", node="n1", storage=memory) as store:
        assert (
            dict(store.map("m", raw=True)) == written
            and store.map("other", raw=True)[b"k"] == b"39"
        )
    reader = LogReader("memory://", cluster="embedded", node="n1", storage=memory)
    positions = [record.position for record in reader.read()]
    assert len(positions) == 88 and positions == sorted(set(positions))
