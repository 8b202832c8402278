"""Which snapshots a view reads that has merged the log."""

from __future__ import annotations

from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from storage_backends.faults import FaultyStore
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import SMALL, append, cluster, node, values, view


def test_a_snapshot_of_merged_entries_is_not_read_again(memory: MemoryStore) -> None:
    """A view may read the first snapshot of a map. It reads a later one only if that has entries
    that it has not merged."""
    log, store = node(memory), FaultyStore(memory)
    made = view(store)

    def reads() -> set[str]:
        """Kinds of the snapshots' files that a merge has read."""
        del store.operations[:]
        made.catch_up()
        return {
            one.path
            for one in store.operations
            if "/snapshot/" in one.path and one.kind in {"read", "open_input"}
        }

    for turn in range(1, 4):
        append(log, put("k", f"v{turn}", (1, turn, 1, turn)))
        assert not reads()
        rewrite(cluster(memory), LocalEngine(SMALL))
        assert not reads() or turn == 1
    append(log, put("k", "v4", (1, 4, 1, 4)))
    rewrite(cluster(memory), LocalEngine(SMALL))
    assert reads()
    assert values(made) == {"k": "v4"}
