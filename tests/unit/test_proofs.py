"""What an open reads before and after it fences the former writer."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from imap_wal.errors import Fenced
from imap_wal.write.opening import NodeOpening
from storage_backends.faults import FaultyStore
from storage_backends.interface import SegmentStore
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.support import copy_files, node_log, row


def write(log: object, number: int) -> None:
    log.write(1, 1, [row(f"k{number}", "v", number)])  # type: ignore[attr-defined]
    log.sync()  # type: ignore[attr-defined]


def without_lease(root: Path) -> LocalObjects:
    return LocalObjects(str(root), clock_ms=lambda: 0)


@pytest.mark.parametrize("kind", ["files", "objects"])
def test_what_a_writer_adds_after_the_proof_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The proof precedes the fence. So the scan that decides what was acknowledged follows it."""

    def store() -> SegmentStore:
        return LocalStore(str(tmp_path)) if kind == "files" else without_lease(tmp_path)

    # With space reserved in advance, a file has the same size after the next commit.
    former = node_log(store(), preallocate=True)
    write(former, 1)
    shut_out, added = NodeOpening._shut_out, []

    def later(opening: NodeOpening, before: object) -> None:
        write(former, 2)
        added.append(2)
        shut_out(opening, before)  # type: ignore[arg-type]

    monkeypatch.setattr(NodeOpening, "_shut_out", later)
    taken = node_log(store(), takeover=True, seed=2)
    assert added and taken.requests == {1: 2}
    assert taken.recovery.frames == 2


def test_an_object_is_read_once_by_an_open(tmp_path: Path) -> None:
    """Except for the last one: the fence follows it, and must not exist yet."""
    former = node_log(without_lease(tmp_path))
    for number in range(1, 6):
        write(former, number)
    counted = FaultyStore(without_lease(tmp_path))
    node_log(counted, takeover=True, seed=2)
    reads = Counter(each.path for each in counted.operations if each.kind == "read")
    segments = {path: count for path, count in reads.items() if path.endswith(".wal")}
    fence = max(segments)
    assert len(segments) == 6
    assert max(count for path, count in segments.items() if path < sorted(segments)[-2]) == 1
    assert segments[fence] <= 2


def test_a_commit_between_two_reads_is_no_damage(tmp_path: Path) -> None:
    """A takeover reads the log of a writer that still writes."""
    former = node_log(LocalStore(str(tmp_path)))
    write(former, 1)

    class Writing(LocalStore):
        """Two commits precede each of the first answers about the size of the segment. The second
        one says that the first was synced, so it cannot be a torn tail."""

        def size(self, path: str) -> int:
            if path.endswith(".wal") and acknowledged[-1] < 5:
                with suppress(Fenced):  # after the proof
                    for _ in range(2):
                        write(former, acknowledged[-1] + 1)
                        acknowledged.append(acknowledged[-1] + 1)
            return super().size(path)

    acknowledged = [1]
    taken = node_log(Writing(str(tmp_path)), takeover=True, seed=2)
    assert len(acknowledged) > 1 and taken.requests == {1: acknowledged[-1]}


def test_a_refused_takeover_does_not_affect_a_running_writer(memory: MemoryStore) -> None:
    """It keeps its lock and its permit."""
    former = node_log(memory)
    write(former, 1)
    with pytest.raises(Exception, match="forgotten or replaced"):
        NodeOpening(former.context, takeover=True, directory="another").open("the test")
    write(former, 2)
    assert node_log(copy_files(memory), seed=3).requests == {1: 2}
