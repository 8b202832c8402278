"""A log becomes smaller by archives and by removal, and keeps what no snapshot covers."""

from __future__ import annotations

import pytest

import imap_wal
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.errors import (
    PositionGone,
)
from imap_wal.log import START
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore
from tests.kit.standalone import create, everywhere, fill, reading, reopen, texts_of
from tests.support import FakeClock, eventually, segments


def covered(storage: SegmentStore, cluster: str = "log") -> ClusterLog:
    """The cluster, with a fresh snapshot of all its maps."""
    found = ClusterLog(
        Context(storage, clock=FakeClock(), randomness=SeededRandomness(7)), "default", cluster
    )
    rewrite(found, LocalEngine(Settings()))
    return found


def test_shrink_removes_only_what_a_snapshot_covers(memory: MemoryStore) -> None:
    with create(memory) as opened:
        places = fill(opened, *range(12))
        opened.rotate()
        assert opened.shrink() == START, "no snapshot covers anything"
        everywhere(opened, memory, places)
        covered(memory)
        later = fill(opened, *range(12, 20))
        oldest = opened.shrink()
        assert places[0] < oldest <= places[-1].after()
        left = [record.position for record in opened.read()]
        assert left == [place for place in places + later if place >= oldest] and set(later) <= set(
            left
        )
        with pytest.raises(PositionGone) as raised:
            list(opened.read(places[0]))
        assert raised.value.oldest == str(oldest)
        assert [record.position for record in opened.read(raised.value.oldest)] == left
        assert reading(memory).oldest() == oldest
        fill(opened, "more")
    with reopen(memory) as opened:
        assert [record.position for record in opened.read()][: len(left)] == left
    with imap_wal.open(memory.url, cluster="log", node="view", storage=memory) as store:
        assert store.map("m", raw=True)[b"k"] == b"more", "the snapshot has what was removed"


@pytest.mark.parametrize("archived", [False, True])
def test_shrink_upto_a_position_keeps_everything_above_it(
    memory: MemoryStore, archived: bool
) -> None:
    with create(memory) as opened:
        places = fill(opened, *range(8))
        if archived:
            opened.archive()
        places += fill(opened, *range(8, 20))
        if archived:
            opened.archive()
        opened.rotate()
        assert opened.shrink(places[0]) == START
        for upto in (places[2], places[9], places[15], places[9]):
            oldest = opened.shrink(upto, uncovered=True)
            assert oldest <= places[15].after()
            assert [record.position for record in opened.read()] == [
                place for place in places if place >= oldest
            ]
        places += fill(opened, "more")
        assert opened.shrink(uncovered=True) == places[-2].after(), (
            "the segment being written is kept"
        )
        opened.rotate()
        assert opened.shrink(uncovered=True) == places[-1].after()
        assert list(opened.read()) == [] and not segments(memory)
        after = fill(opened, "after")
        assert [record.position for record in opened.read()] == after
    with reopen(memory) as opened:
        assert after[0] < fill(opened, "again")[0]
        assert texts_of(opened.read()) == ["after", "again"]


def test_covered_files_are_removed_after_their_retention(memory: MemoryStore) -> None:
    """Files that a snapshot covers are removed when the retention time is over."""
    with create(memory, wal_ttl_seconds=1, clock=FakeClock()) as opened:
        places = fill(opened, *range(12))
        opened.archive()
        assert [record.position for record in opened.read()] == places
        covered(memory)
        places += fill(opened, "new")
        opened.archive()
        assert texts_of(opened.read()) == ["new"] and opened.shrink(START) == places[-2].after()


def test_a_log_removes_what_a_snapshot_covers_by_itself(memory: MemoryStore) -> None:
    with create(memory) as opened:
        fill(opened, *range(12))
        opened.archive()
    covered(memory)
    with reopen(memory, wal_ttl_seconds=1) as opened:
        eventually(
            lambda: not any("/archive/" in file.path for file in memory.list("")),
            "the covered archive is removed",
        )
        fill(opened, "new")
        assert texts_of(opened.read()) == ["new"]


def test_reader_at_pruned_position_gets_the_oldest_position(memory: MemoryStore) -> None:
    """The error for a reader at a removed position names the oldest position."""
    with create(memory) as opened:
        places = fill(opened, *range(12))
        opened.archive()
        fill(opened, "new")
        prune(covered(memory))
        with pytest.raises(PositionGone) as raised:
            list(opened.read(places[3]))
        assert raised.value.oldest == str(places[-1].after())
        assert texts_of(opened.read(places[-1].after())) == ["new"]
        assert texts_of(opened.read()) == ["new"]


def test_a_shrink_up_to_a_position_that_was_removed(memory: MemoryStore) -> None:
    """It removes nothing, also if the log has forgotten the epoch of the position."""
    places = []
    for number in range(3):
        with reopen(memory) if places else create(memory) as opened:
            places += fill(opened, number)
            opened.rotate()
            opened.shrink(places[-1], uncovered=True)
    with reopen(memory) as opened:
        fill(opened, "kept")
        oldest = opened.shrink(places[0], uncovered=True)
        assert texts_of(opened.read(oldest)) == ["kept"]


def test_only_a_tail_that_missed_removed_entries_fails(
    memory: MemoryStore,
) -> None:
    """A tail that has read the removed entries continues; one that has not gets an error."""
    with create(memory) as opened:
        places = fill(opened, *range(20))
        opened.rotate()
        places += fill(opened, "last")
        ahead, late = reading(memory).tail(poll_s=0.001), reading(memory).tail(poll_s=0.001)
        assert [next(ahead).position for _ in places] == places
        next(late)
    with reopen(memory) as opened:  # the last frame is a clean shutdown now, which is no entry
        opened.shrink(places[-1], uncovered=True)
        fill(opened, "new")
        assert texts_of([next(ahead)]) == ["new"]
        with pytest.raises(PositionGone):
            list(late)


def test_a_log_with_a_size_limit_archives_by_size(memory: MemoryStore) -> None:
    with create(memory, max_total_wal_size=600) as opened:
        places = fill(opened, *range(60))
        eventually(
            lambda: any(file.path.endswith(".parquet") for file in memory.list("")), "an archive"
        )
        assert [record.position for record in opened.read()] == places
