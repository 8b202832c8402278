"""Bytes cut out of the newest segment are reported, or are those that docs/reliability.md names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imap_wal import format
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.inspect.finding import Deadline
from imap_wal.inspect.inventory import take_inventory
from imap_wal.inspect.verify import check, plan
from imap_wal.security.encryption_keys import NO_KEYS
from imap_wal.segment.reader import SegmentReader
from imap_wal.segment.verdict import CLEAN, CORRUPT, SHORT, TORN, Place, judge
from imap_wal.write.node_log import SegmentWriter
from storage_backends.memory import MemoryStore
from tests.kit.damages import history, offsets
from tests.support import header, overwrite, row, segments

PATH = "default/embedded/nodes/n1/wal/00000001-00000001.wal"
_numbers = itertools.count(1)


def write(store: MemoryStore, frames: Sequence[tuple[int, bool]], zeros: int) -> list[int]:
    """A segment with frames whose values have this length, each followed by a sync or not; returns
    where each begins, and where the last ends."""
    writer = SegmentWriter(store, PATH, header(), zeros)
    begins = []
    for number, (length, synced) in enumerate(frames, 1):
        payload = [row(f"k{number}", "v" * length, number)]
        begins.append(writer.append(format.ENTRIES, 1, payload))
        if synced:
            writer.sync()
    writer.close()
    return [*begins, writer.size]


FRAMES = st.lists(st.tuples(st.integers(0, 80), st.booleans()), min_size=2, max_size=8)


@given(
    frames=FRAMES,
    zeros=st.sampled_from([0, 4096]),
    start=st.integers(0, 10**6),
    length=st.integers(1, 10**6),
)
@example(frames=[(3, True)] * 5, zeros=4096, start=0, length=1)
@example(frames=[(3, True)] * 5, zeros=0, start=0, length=1)
def test_any_cut_is_reported_or_documented_as_undetectable(
    frames: list[tuple[int, bool]], zeros: int, start: int, length: int
) -> None:
    """Undetectable: no whole frame is left after the cut that was written directly after a sync."""
    store = MemoryStore(f"cut-{next(_numbers)}")
    places = write(store, frames, zeros)
    first, end = places[0], places[-1]
    begin = first + start % (end - first)
    stop = min(begin + 1 + length % (end - begin), end)
    data = store.read(PATH)
    overwrite(store, PATH, data[:begin] + data[stop:])

    seen: list[int] = []
    place = Place(PATH, "", 1, 1, newest=1)
    verdict, _ = judge(store, place, lambda frame: seen.append(frame.offset), keys=NO_KEYS)
    assert seen == [at for at, until in itertools.pairwise(places) if until <= begin]
    after_sync = [
        at
        for at, (_, synced) in zip(places[1:-1], frames[:-1], strict=True)
        if synced and at >= stop
    ]
    if after_sync:
        assert verdict.status == CORRUPT
        assert "bytes were cut out" in verdict.what
    else:
        assert verdict.status in (TORN, CLEAN)


def test_two_acknowledged_commits_that_were_cut_out_are_found(memory: MemoryStore) -> None:
    """By `verify` too. Nothing else of the log shows it: it was killed, without a checkpoint."""
    history(memory)
    path = segments(memory)[2]
    data, at = memory.read(path), offsets(memory, path)
    overwrite(memory, path, data[: at[1]] + data[at[3] :])
    (view,) = take_inventory(Context(memory))
    units = plan(Context(memory), view, lambda _: True)[1]
    findings = check(units, lambda _: None, Deadline(SystemClock(), None))[0]
    assert [each.status for each in findings if each.file == path] == ["corrupt"]


@pytest.mark.parametrize("last", [False, True])
def test_a_cut_is_known_by_checkpoint_or_successor(memory: MemoryStore, *, last: bool) -> None:
    """Although no frame after it was written directly after a sync."""
    places = write(memory, [(3, True), (3, False), (3, False), (3, False)], 0)
    data = memory.read(PATH)
    overwrite(memory, PATH, data[: places[2]] + (b"" if last else data[places[3] :]))
    named = format.Position(1, 1, places[3], 0)
    place = Place(PATH, "", 1, 1, checkpoint=named)
    assert judge(memory, place, lambda _: None, keys=NO_KEYS)[0].status == (
        SHORT if last else CORRUPT
    )
    said = SegmentReader(memory, PATH)
    assert [frame.offset for frame in said.whole_frames()] == places[:2]
    followed = Place(PATH, "", 1, 1, followed=True, newest=2)
    assert judge(memory, followed, lambda _: None, lambda: 7, keys=NO_KEYS)[0].status == (
        SHORT if last else CORRUPT
    )


def test_a_value_with_earlier_frames_is_no_cut(memory: MemoryStore) -> None:
    """A map that holds copies of its own log, and a last commit that a crash interrupted."""
    writer = SegmentWriter(memory, PATH, header(), 0)
    for number in range(1, 5):
        writer.append(format.ENTRIES, 1, [row(f"k{number}", "v", number)])
        writer.sync()
    copied = memory.read(PATH)
    writer.append(format.ENTRIES, 1, [row("copy", "v", 9), copied * 3])
    writer.close()
    overwrite(memory, PATH, memory.read(PATH)[:-3])
    place = Place(PATH, "", 1, 1, newest=1)
    assert judge(memory, place, lambda _: None, keys=NO_KEYS)[0].status == TORN
