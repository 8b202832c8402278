"""repair after random damage to random histories."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal import entry, format
from imap_wal.context import Context, open_context
from imap_wal.entry import DELETED, MAP, ORDER, VALUE, Row
from imap_wal.format import Position
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import Scope
from imap_wal.read.state import ClusterState
from imap_wal.repair.report import POINT_IN_TIME, summary
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.segment.reader import SegmentReader
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.kit.effort import share
from tests.kit.repairs import repaired
from tests.support import copy_files, overwrite, segments

numbers = itertools.count(1)


@dataclass(frozen=True)
class Written:
    """A frame of entries as it was before the damage."""

    node: str
    path: str
    epoch: int
    number: int
    offset: int
    end: int
    rows: list[Row]


def history(seed: int, url: str) -> tuple[MemoryStore, list[Written]]:
    """A log of two nodes, closed or killed."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        open_logs = [
            imap_wal.open(
                url, node=node, shared=True, segment_bytes=rng.choice((1500, 4000, 100_000))
            )
            for node in ("n1", "n2")
        ]
        for _ in range(rng.randint(1, 25)):
            log = rng.choice(open_logs)
            target = log.map(rng.choice(("a", "b")))
            match rng.randint(0, 9):
                case 0:
                    target.update(
                        {f"k{number}": rng.random() for number in range(rng.randint(1, 6))}
                    )
                case 1 if "k1" in target:
                    del target["k1"]
                case _:
                    target[f"k{rng.randint(0, 4)}"] = rng.randbytes(rng.randint(0, 200)).hex()
        if rng.random() < 0.3:
            rng.choice(open_logs).archive()
        last = copy_files(open_store(url))
        for log in open_logs:
            log.close()
        if rng.random() < 0.4:
            rewrite(ClusterLog(open_context(url), "default", "embedded"), LocalEngine())
            last = copy_files(open_store(url))
    store = copy_files(open_store(url)) if rng.random() < 0.6 else last
    written = []
    for file in store.list(""):
        if file.path.endswith(".wal"):
            reader = SegmentReader(store, file.path)
            for frame in reader.whole_frames():
                rows = list(entry.rows(frame.payload)) if frame.kind == format.ENTRIES else []
                written.append(
                    Written(
                        reader.header.node,
                        file.path,
                        reader.header.epoch,
                        reader.header.number,
                        frame.offset,
                        frame.end,
                        rows,
                    )
                )
    return store, written


def damage(seed: int, store: MemoryStore, written: list[Written]) -> list[Written]:
    """Damage some segments; the frames that are still whole."""
    rng = random.Random(seed)
    whole = list(written)
    before = {frame.path: store.read(frame.path) for frame in written}
    for _ in range(rng.randint(1, 4)):
        paths = sorted({frame.path for frame in whole})
        if not paths:
            break
        path = rng.choice(paths)
        data = bytearray(store.read(path))
        first = min(frame.offset for frame in written if frame.path == path)
        end = max(frame.end for frame in written if frame.path == path)
        kind = rng.choice(("flip", "flip", "zeros", "garbage", "cut", "header", "gone"))
        start, stop = sorted((rng.randint(first, end - 1), rng.randint(first, end - 1)))
        if start >= len(data):
            continue  # cut off before
        if kind == "flip":
            stop = start + 1
            data[start] ^= 1 << rng.randint(0, 7)
        elif kind == "zeros":
            data[start:stop] = bytes(stop - start)
        elif kind == "garbage":
            data[start:stop] = rng.randbytes(stop - start)
        elif kind == "cut":
            start, stop = start if start % 4 else first, end  # often only the header is left
            del data[start:]
        elif kind == "header":
            start, stop = 0, 0
            data[rng.choice((*range(15), *range(31, first)))] ^= 1 << rng.randint(
                0, 7
            )  # not the id: it may be the only way to recognise a single frame
        else:
            start, stop = 0, end
        if kind == "gone":
            store.delete(path)
        else:
            overwrite(store, path, bytes(data))
        whole = [
            frame
            for frame in whole
            if frame.path != path or frame.end <= start or frame.offset >= stop
        ]
    # By content in the end: a bit that was flipped twice is whole again.
    after = {path: store.read(path) if store.exists(path) else b"" for path in before}
    return [
        frame
        for frame in written
        if after[frame.path][frame.offset : frame.end]
        == before[frame.path][frame.offset : frame.end]
    ]


def rows_of(log: ClusterLog, scope: Scope, state: ClusterState | None = None) -> list[Row]:
    return [row for changes in log.changes(scope=scope, state=state) for row in changes.rows]


@settings(max_examples=share(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_salvage_keeps_every_whole_frame_and_nothing_else(seed: int) -> None:
    store, written = history(seed, f"memory://repair-{next(numbers)}")
    log = ClusterLog(Context(store), "default", "embedded")
    state = log.state()
    archived = rows_of(log, Scope(snapshots=False, covered=True), state)
    archived = list(
        (Counter(archived) - Counter(row for frame in written for row in frame.rows)).elements()
    )
    snapshots = rows_of(log, Scope(until={}), state)
    uncovered_archives = rows_of(log, Scope(snapshots=False), state)
    covered = {node: state.covered(node) for node in state.nodes}
    whole = damage(seed, store, written)
    copy, items = repaired(store, f"repaired-{next(numbers)}")
    again = ClusterLog(Context(copy), "default", "embedded")
    found = rows_of(again, Scope(snapshots=False, covered=True))
    kept = [row for frame in whole for row in frame.rows]
    assert Counter(found) == Counter(kept) + Counter(archived)
    assert summary_of(items)["given_up_records"] <= sum(len(frame.rows) for frame in written) - len(
        kept
    ) + sum(item["given_up"] is None for item in items)
    # The entries that count: those of snapshots, and those above their marks.
    above = [
        row
        for frame in whole
        for index, row in enumerate(frame.rows)
        if Position(frame.epoch, frame.number, frame.offset, index)
        > covered[frame.node].get(row[MAP], format.START)
    ]
    of_archives = list((Counter(uncovered_archives) & Counter(archived)).elements())
    newest: dict[Any, Row] = {}
    for row in (*snapshots, *above, *of_archives):
        known = newest.get(row[:2])
        if known is None or row[ORDER] > known[ORDER]:
            newest[row[:2]] = row
    expected = {place: row[VALUE] for place, row in newest.items() if not row[DELETED]}
    import msgpack

    if seed % 2:
        shortened(copy)
    with imap_wal.open(copy.url, node="n1") as opened:
        for name in ("a", "b"):
            assert dict(opened.map(name)) == {
                msgpack.unpackb(key): msgpack.unpackb(value)
                for (of, key), value in expected.items()
                if of == name
            }
        opened.map("a")["new"] = seed
    with imap_wal.open(copy.url, node="n1") as opened:
        assert opened.map("a")["new"] == seed


def shortened(copy: MemoryStore) -> None:
    """Rewrite and prune the copy: only the newest segment of each node remains."""
    log = ClusterLog(Context(copy), "default", "embedded")
    rewrite(log, LocalEngine())
    prune(log)


def test_a_pruned_repaired_log_opens_again() -> None:
    """Its last segment was not changed, so it has the id that its epoch had before the repair. The
    first open of the copy forgot that id, because what was shared with the log was removed."""
    url = f"memory://pruned-{next(numbers)}"
    for number in range(3):
        with imap_wal.open(url, node="n1", auto_rewrite_percentage=0) as store:
            for key in range(3):
                store.map("m")[f"{number}-{key}"] = key
    log = copy_files(open_store(url))
    damaged, *_ = segments(log)
    first, *_ = SegmentReader(log, damaged).whole_frames()
    data = bytearray(log.read(damaged))
    data[first.end - 1] ^= 1
    overwrite(log, damaged, bytes(data))
    copy, _ = repaired(log, f"pruned-copy-{next(numbers)}")
    shortened(copy)
    for count in (8, 9):
        with imap_wal.open(copy.url, node="n1", auto_rewrite_percentage=0) as store:
            assert len(store.map("m")) == count
            store.map("m")["new"] = 1


def test_what_the_logs_have_of_a_damaged_snapshot_counts() -> None:
    url = f"memory://covered-{next(numbers)}"
    for number in range(3):
        with imap_wal.open(url, node="n1", auto_rewrite_percentage=0) as store:
            for key in range(3):
                store.map("m")[f"{number}-{key}"] = key
        log = ClusterLog(open_context(url), "default", "embedded")
        rewrite(log, LocalEngine())
        if number == 1:
            prune(log)
    damaged = copy_files(open_store(url))
    rows = rows_of(
        ClusterLog(Context(damaged), "default", "embedded"), Scope(snapshots=False, covered=True)
    )
    for file in damaged.list("default/embedded/snapshot"):
        overwrite(damaged, file.path, b"")
    copy, _ = repaired(damaged, f"covered-copy-{next(numbers)}")
    with imap_wal.open(copy.url, node="n1", auto_rewrite_percentage=0) as store:
        assert len(store.map("m")) == len(rows) >= 3


def summary_of(items: list[Any]) -> dict[str, Any]:
    from imap_wal.repair.report import Extent, Item

    return summary(
        [
            Item(
                **{
                    **item,
                    "kept": Extent(**item["kept"]),
                    "given_up": item["given_up"] and Extent(**item["given_up"]),
                }
            )
            for item in items
        ]
    )


def unseen_losses(
    store: MemoryStore, intact: MemoryStore, written: list[Written], whole: list[Written]
) -> list[Written]:
    """Lost frames that nothing shows: the file ends before them at the end of a frame, or of a
    sound header, the header of the next segment is damaged, and no manifest names a frame that is
    gone."""
    manifest = ClusterLog(Context(intact), "default", "embedded").state().manifest
    known = [
        (node, mark.position)
        for snapshot in manifest.snapshots.values()
        for node, mark in snapshot.marks.items()
    ]
    nodes = ClusterLog(Context(intact), "default", "embedded").state().nodes
    known += [(name, node.manifest.checkpoint) for name, node in nodes.items()]
    found: list[Written] = []
    for path in {frame.path for frame in written}:
        frames = [frame for frame in written if frame.path == path]
        size = store.size(path) if store.exists(path) else -1
        one = frames[0]
        lost = [frame for frame in frames if frame.offset >= size]
        after = [
            frame for frame in written if (frame.node, frame.number) == (one.node, one.number + 1)
        ]
        if not lost or lost[0].offset != size or not after:
            continue
        if lost == frames and store.read(path) != intact.read(path)[:size]:
            continue
        header = slice(0, after[0].offset)
        following = store.read(after[0].path) if store.exists(after[0].path) else b""
        if following[header] == intact.read(after[0].path)[header] or any(
            node == one.node and place[:2] == (one.epoch, one.number) and place.frame >= size
            for node, place in known
        ):
            continue
        if all(frame in whole for frame in frames if frame not in lost):
            found += lost
    return found


@settings(max_examples=share(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
@example(seed=365)  # only a snapshot's mark shows what is lost
@example(seed=38696)  # only a header is left of a segment, and it is damaged
def test_point_in_time_keeps_the_front_of_every_node(seed: int) -> None:
    store, written = history(seed, f"memory://pit-{next(numbers)}")
    intact = copy_files(store)
    whole = damage(seed, store, written)
    unseen = unseen_losses(store, intact, written, whole)
    copy, _ = repaired(store, f"pit-copy-{next(numbers)}", POINT_IN_TIME)
    again = ClusterLog(Context(copy), "default", "embedded")
    for node in ("n1", "n2"):
        order = sorted(
            (frame for frame in written if frame.node == node),
            key=lambda frame: (frame.number, frame.offset),
        )
        front: list[Row] = []
        for frame in order:
            if frame in unseen:
                continue
            if frame not in whole:
                break
            front += frame.rows
        found = rows_of(again, Scope([node], snapshots=False, covered=True))
        of_segments = Counter(found) & Counter(row for frame in order for row in frame.rows)
        assert of_segments == Counter(front)
    with imap_wal.open(copy.url, node="n1") as opened:
        opened.map("a")["new"] = seed
