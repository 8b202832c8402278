"""After a rewrite of all maps, what snapshots cover is not read again: neither by the next rewrite,
nor by a prune."""

from __future__ import annotations

import itertools
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings

from imap_wal import entry, format
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.format import START
from imap_wal.manifest import readers
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention import removal
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.report import PruneReport
from imap_wal.settings import Settings
from imap_wal.write.node_log import NodeLog
from storage_backends.faults import FaultyStore
from storage_backends.memory import MemoryStore
from tests import histories
from tests.histories import put
from tests.kit.effort import share
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.repairs import repaired
from tests.kit.rewrites import archive, run
from tests.support import FakeClock, copy_files, segments

_numbers = itertools.count()


def fill(log: NodeLog, first: int, count: int, name: str = "orders") -> None:
    """A sealed segment with these requests."""
    for number in range(first, first + count):
        append(log, put(f"k{number}", str(number), (1, 1, 5, number + 1), name))
    log.rotate()


def reads(store: MemoryStore, **options: Any) -> list[str]:
    """The paths that a rewrite reads."""
    watched = FaultyStore(store)
    run(watched, **options)
    return [each.path for each in watched.operations if each.kind in ("read", "open_input")]


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of entries that are decoded from now on, by frames."""
    found: list[int] = []
    original = entry.EntryDecoder.decoded

    def decode(decoder: entry.EntryDecoder, payload: Any, count: int) -> Any:
        found.append(count)
        return original(decoder, payload, count)

    monkeypatch.setattr(entry.EntryDecoder, "decoded", decode)
    return found


def test_a_rewrite_reads_no_covered_segment(memory: MemoryStore) -> None:
    log = node(memory)
    for first in (0, 10, 20):
        fill(log, first, 10)
    run(memory)
    covered = segments(memory)
    fill(log, 30, 2)
    assert {path for path in reads(memory) if path in covered} <= {covered[-1]}
    assert len(values(view(memory))) == 32


def test_a_rewrite_decodes_no_covered_entry_of_the_newest_segment(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node(memory)
    for number in range(10):
        append(log, put(f"k{number}", "1", (1, 1, 5, number + 1)))
    run(memory)
    append(log, put("k0", "2", (1, 1, 5, 20)))
    seen = decoded(monkeypatch)
    (report,) = run(memory).maps
    assert sum(seen) == 1
    assert report.records_read == 11, "one entry of the log, ten of the former snapshot"


def test_a_rewrite_reads_no_covered_archive(memory: MemoryStore) -> None:
    log = node(memory)
    fill(log, 0, 10)
    archive(memory, log)
    run(memory)
    covered = [file.path for file in memory.list("") if "/archive/" in file.path]
    fill(log, 10, 2)
    assert covered and not {*covered} & {*reads(memory)}


def test_the_first_entry_of_a_new_map_is_read(memory: MemoryStore) -> None:
    log = node(memory)
    fill(log, 0, 3)
    run(memory)
    fill(log, 3, 3, "other")
    run(memory, maps=["orders"])
    fill(log, 6, 3)
    run(memory)
    assert len(values(view(memory), "other")) == 3 and len(values(view(memory))) == 6


def test_a_rewrite_of_some_maps_covers_no_other_map(memory: MemoryStore) -> None:
    log = node(memory)
    fill(log, 0, 3)
    fill(log, 3, 3, "other")
    run(memory, maps=["orders"])
    assert cluster(memory).state().complete("n1") == START
    run(memory)
    assert cluster(memory).state().complete("n1") == log.end
    assert len(values(view(memory), "other")) == 3


def test_a_dropped_map_leaves_the_mark_of_all_maps(memory: MemoryStore) -> None:
    log = node(memory)
    fill(log, 0, 3)
    run(memory)
    end = log.end
    drop_map(cluster(memory), "orders")
    assert cluster(memory).state().complete("n1") == end
    fill(log, 3, 1)
    run(memory)
    assert values(view(memory)) == {"k3": "3"}


def test_metadata_of_covered_segments_is_kept(memory: MemoryStore) -> None:
    """Without schemas, the values of a snapshot cannot be read."""
    log = node(memory)
    log.write(format.METADATA, 1, [msgpack.packb(("schema", 7, b"content"))])
    fill(log, 0, 3)
    run(memory)
    assert ("schema", 7, b"content") in view(memory).metadata()
    log.move_checkpoint(log.end, {5: 3})
    fill(log, 3, 3)
    prune(cluster(memory))
    assert ("schema", 7, b"content") in view(memory).metadata()


def two_prunes(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The manifest of the node and the segments after a prune that need not decode entries, and
    after one that decodes them."""
    found = []
    for known in (True, False):
        copy = copy_files(store)
        with monkeypatch.context() as patch:
            patch.setattr(
                removal,
                "_known_complete",
                lambda state, node: state.complete(node.name) if known else START,  # noqa: B023
            )
            seen = decoded(patch)
            prune(cluster(copy))
            assert bool(seen) is not known
        manifest = cluster(copy).node("n1").manifest
        found.append((manifest, segments(copy)))
    return found


def test_prune_decodes_no_entry_below_the_checkpoint(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node(memory)
    log.write(format.METADATA, 1, [msgpack.packb(("schema", 7, b"content"))])
    fill(log, 0, 3)
    fill(log, 3, 3, "other")
    log.move_checkpoint(log.end, {5: 6})
    append(log, put("k9", "9", (1, 1, 5, 9)))
    run(memory)
    known, read = two_prunes(memory, monkeypatch)
    assert known == read
    assert known[0].requests == {5: 6} and len(known[1]) == 1


@pytest.mark.parametrize(("times", "known"), [(2000, True), (1, False)])
def test_prune_reads_entries_if_that_is_less_than_all_snapshots(
    memory: MemoryStore, times: int, known: bool
) -> None:
    log = node(memory)
    for number in range(times):
        append(log, put("k", "long" * 100, (1, 1, 5, number + 1)))
    run(memory)
    state = cluster(memory).state()
    assert removal._known_complete(state, state.nodes["n1"]) == (log.end if known else START)


def test_prune_reads_the_requests_above_the_checkpoint(memory: MemoryStore) -> None:
    log = node(memory)
    log.move_checkpoint(log.end, {})
    fill(log, 0, 3)
    fill(log, 3, 3)
    run(memory)
    fill(log, 6, 1)
    assert len(prune(cluster(memory)).segments) == 2
    assert cluster(memory).node("n1").manifest.requests == {5: 6}


def test_prune_keeps_what_a_reader_has_not_read(memory: MemoryStore) -> None:
    log = node(memory)
    fill(log, 0, 3)
    read = log.end
    fill(log, 3, 3)
    log.move_checkpoint(log.end, {5: 6})
    run(memory)
    fill(log, 6, 1)
    every = cluster(memory)
    reader = readers.Reader(
        Context(memory, clock=FakeClock(), randomness=every.randomness), every.folder, "r"
    )
    reader.begin({"n1": read})
    assert len(prune(every).segments) == 1
    reader.advance({"n1": log.end})
    assert len(prune(every).segments) == 1


def test_a_repaired_copy_has_no_mark_of_all_maps(memory: MemoryStore) -> None:
    """Its positions are those of the damaged logs."""
    log = node(memory)
    fill(log, 0, 3)
    run(memory)
    log.close()
    for path in cluster(memory).manifest().snapshots["orders"].paths:
        memory.delete(path)
    copy, _ = repaired(memory, "covered-logs")
    assert cluster(memory).manifest().all_maps and not cluster(copy).manifest().all_maps


def test_a_map_after_the_mark_survives_a_repair(memory: MemoryStore) -> None:
    """Its entry moves to where the mark of all maps was. No other position in the cluster's
    manifest moves: the mark of the only snapshot is in the next segment."""
    log = node(memory)
    append(log, put("k0", "0" * 400, (1, 1, 5, 1)))
    append(log, put("k1", "1", (1, 1, 5, 2)))
    run(memory)
    append(log, put("z", "acknowledged", (1, 1, 5, 3), "other"))
    log.rotate()
    append(log, put("k2", "2", (1, 1, 5, 4)))
    run(memory, maps=("orders",))
    log.close()
    path = segments(memory)[0]
    content = memory.read(path)
    memory.replace(path, content.replace(b"0" * 400, b"0" * 399 + b"4"))
    copy, _ = repaired(memory, f"after-the-mark-{next(_numbers)}")
    assert values(view(copy), "other") == {"z": "acknowledged"}
    run(copy)
    prune(cluster(copy))
    assert values(view(copy), "other") == {"z": "acknowledged"}


def test_a_whole_log_keeps_its_mark_of_all_maps(memory: MemoryStore) -> None:
    log = node(memory)
    fill(log, 0, 3)
    run(memory)
    log.close()
    copy, _ = repaired(memory, "whole-mark")
    assert cluster(copy).manifest() == cluster(memory).manifest()
    assert cluster(copy).manifest().all_maps


def both_prunes(log: ClusterLog, **options: Any) -> PruneReport:
    """`prune`, after two in copies: one that decodes no entry if it need not, and one that decodes
    all. Both must remove and keep the same."""
    found = []
    for known in (True, False):
        copy = ClusterLog(
            Context(copy_files(log.store), clock=log.clock, randomness=SeededRandomness(3)),
            log.namespace,
            log.cluster,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                removal,
                "_known_complete",
                lambda state, node: state.complete(node.name) if known else START,  # noqa: B023
            )
            report = prune(copy, **options)
        found.append((report, {name: copy.node(name) for name in copy.nodes()}))
    assert found[0] == found[1]
    return prune(log, **options)


@settings(
    max_examples=share(30),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=histories.steps)
def test_prunes_agree_over_random_histories(
    monkeypatch: pytest.MonkeyPatch, history: list[tuple[str, int, int, int]]
) -> None:
    monkeypatch.setattr(histories, "prune", both_prunes)
    histories.play_and_maintain(
        f"covered-{next(_numbers)}", history, Settings(preallocate=False, segment_bytes=1 << 20)
    )
