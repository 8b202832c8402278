"""Verify, repair, every mode of an open and a live view agree about the same damage: the table of
`imap_wal.segment.verdict`, over random damage."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from imap_wal import format
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.errors import LogError
from imap_wal.inspect.finding import Deadline, Finding
from imap_wal.inspect.inventory import looks_at, take_inventory
from imap_wal.inspect.verify import check, plan
from imap_wal.read.cluster import ClusterLog
from imap_wal.repair.cluster import ClusterRepair
from imap_wal.repair.report import POINT_IN_TIME, SALVAGE
from imap_wal.segment.reader import SegmentReader
from storage_backends.memory import MemoryStore, forget
from tests.kit.effort import share
from tests.support import contents, copy_files, node_log, overwrite, row, segments

numbers = itertools.count(1)
REPLACED = "begun by a writer that had been replaced"
CLEAN, TAIL, DAMAGE = "clean", "tail", "damage"


def history(chance: Random) -> MemoryStore:
    """A log of up to three epochs, each closed or killed, of several segments; not every commit was
    synced."""
    store = MemoryStore(f"verdicts-{next(numbers)}")
    key = 0
    for epoch in range(chance.randint(1, 3)):
        log = node_log(store, seed=epoch + 1)
        always = chance.random() < 0.5
        for rotation in range(chance.randint(1, 3)):
            if rotation:
                log.rotate()
            for _ in range(chance.randint(0 if rotation else 1, 4)):
                value = "v" * chance.choice((1, 30, 300))
                log.write(format.ENTRIES, 1, [row(str(key), value, key + 1)])
                key += 1
                if always or chance.random() < 0.3:
                    log.sync()
        if chance.random() < 0.5:
            log.close()
        store = copy_files(store)
    return store


KINDS = (
    "flip",
    "cut",
    "zeros",
    "zero tail",
    "no frames",
    "torn header",
    "swap",
    "copy",
    "another one",
    "gone",
    "noise after",
)


def damage(chance: Random, store: MemoryStore) -> str:
    """One kind of damage to one or two segments; its name."""
    paths = sorted(segments(store), key=number)
    if not paths:
        return "nothing is left"
    path = chance.choice(paths)
    data = bytearray(store.read(path))
    at = chance.randrange(max(len(data), 1))
    kind = chance.choice(KINDS)
    match kind:
        case "flip" if data:
            data[at] ^= 1 << chance.randrange(8)
        case "cut":
            del data[at:]
        case "zeros":
            data[at : at + chance.randint(1, 60)] = bytes(
                len(data[at : at + chance.randint(1, 60)])
            )
        case "zero tail":
            data[at:] = bytes(len(data) - at)
        case "no frames":
            with suppress(LogError):
                first = SegmentReader(store, path).first
                data[first:] = bytes(chance.choice((0, len(data) - first)))
        case "torn header":
            path = paths[-1]
            data = bytearray(
                store.read(path)[: chance.randint(0, 60)] + bytes(chance.choice((0, 4096)))
            )
        case "swap":
            other = chance.choice(paths)
            theirs = store.read(other)
            overwrite(store, other, bytes(data))
            data = bytearray(theirs)
        case "copy":
            data = bytearray(store.read(chance.choice(paths)))
        case "another one":
            following = number(paths[-1]) + chance.randint(1, 2)
            path = f"{paths[-1].rpartition('-')[0]}-{following:08d}.wal"
        case "gone":
            store.delete(path)
            return kind
        case "noise after":
            data += chance.randbytes(chance.randint(1, 80))
    if path in paths:
        overwrite(store, path, bytes(data))
    else:
        store.create(path, bytes(data))
    return kind


def verified(store: MemoryStore) -> list[Finding]:
    (view,) = take_inventory(Context(store))
    planned, units = plan(Context(store), view, lambda _: True)
    return planned + check(units, lambda _: None, Deadline(SystemClock(), None))[0]


def repaired(store: MemoryStore, mode: str) -> tuple[dict[str, str], MemoryStore]:
    """Path → status; and the copy."""
    (view,) = looks_at(Context(store))
    repair = ClusterRepair(Context(store), view, mode, lambda _: True, lambda _: None)
    repair.plan()
    copy = MemoryStore(f"verdicts-{next(numbers)}")
    repair.write(copy)
    return {item.file: item.status for item in repair.items if item.kind == "segment"}, copy


def refused(work: Callable[[], object]) -> LogError | None:
    try:
        work()
    except LogError as error:
        return error
    return None


def number(path: str) -> int:
    """The number of the segment with this name. It may be missing, and named by verify."""
    return int(path.rpartition("-")[2][:8])


def keys(store: MemoryStore, below: float = math.inf) -> list[int]:
    """The keys of all entries before the first damage of each segment, as the format alone reads
    them; only of segments with numbers below `below`, and not of a writer that had been
    replaced."""
    nothing_counts = {one.file for one in verified(store) if one.what.startswith(REPLACED)}
    found: list[int] = []
    for path in sorted(segments(store), key=number):
        if "/wal/" in path and number(path) < below and path not in nothing_counts:
            with suppress(LogError):
                frames = SegmentReader(store, path).whole_frames()
                found += [key_of(frame) for frame in frames if frame.kind == format.ENTRIES]
    return found


def front(store: MemoryStore, findings: list[Finding]) -> list[int]:
    """What precedes the first place that verify finds."""
    found = [one for one in findings if one.status != "clean"]
    if not found:
        return keys(store)
    first = min(found, key=lambda one: number(one.file))
    return keys(store, number(first.file) + bool(first.offset))


def key_of(frame: format.Frame) -> int:
    from imap_wal import entry

    return int(next(entry.rows(frame.payload))[1])


def check_repairs(store: MemoryStore, findings: Sequence[Finding], why: str) -> None:
    """Repair, in both modes, names the same files as verify, and its copy is whole."""
    of_verify = {finding.file: finding.status for finding in findings if "*" not in finding.file}
    missing = sum("*" in finding.file for finding in findings)
    for mode in (SALVAGE, POINT_IN_TIME):
        of_repair, copy = repaired(store, mode)
        there = {path: status for path, status in of_repair.items() if status != "missing"}
        assert there == of_verify, f"{why}, {mode}"
        assert (len(there) < len(of_repair)) == (missing > 0), f"{why}, {mode}"
        assert not [each for each in verified(copy) if each.status != "clean"], (
            f"{why}: the copy, {mode}"
        )
        contents(copy)
        forget(copy.url.removeprefix("memory://"))


@settings(max_examples=share(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
@example(seed=389957)
def test_verify_repair_open_and_a_live_view_give_one_verdict(
    caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    caplog.set_level(logging.ERROR, "imap_wal")
    chance = Random(seed)
    store = history(chance)
    said = [damage(chance, store) for _ in range(chance.choice((0, 1, 1, 1, 2)))]
    why = f"seed {seed}: {said}"

    findings = [finding for finding in verified(store) if finding.kind == "segment"]
    statuses = {finding.status for finding in findings}
    verdict = (
        DAMAGE
        if statuses & {"corrupt", "unsupported"}
        else TAIL
        if "torn-tail" in statuses
        else CLEAN
    )

    missing = sum("*" in finding.file for finding in findings)
    check_repairs(store, findings, why)

    # a live view
    error = refused(lambda: [*ClusterLog(Context(store), "default", "embedded").changes()])
    assert (error is not None) == (verdict == DAMAGE), (
        f"{why}: a live view says {error}, verify {statuses}"
    )

    # an open in every mode, and the restore after it
    for recovery_mode in ("absolute", "torn-tail", "point-in-time"):
        left = copy_files(store)
        refuses = verdict == DAMAGE or (verdict == TAIL and recovery_mode == "absolute")
        if recovery_mode == "point-in-time":
            refuses = "unsupported" in statuses
        error = refused(lambda left=left, mode=recovery_mode: contents(left, recovery_mode=mode))
        assert (error is not None) == refuses, (
            f"{why}: {recovery_mode} says {error}, verify {statuses}"
        )
        if error is not None and missing == 0 and recovery_mode == "absolute":
            first = min(
                (one for one in findings if one.status != "clean"), key=lambda one: number(one.file)
            )
            assert (error.file, error.offset) == (first.file, first.offset), why
        if refuses:
            continue
        recovery = node_log(left, recovery_mode=recovery_mode).recovery
        after = sum(
            finding.frames_after or 0 for finding in findings if finding.status == "torn-tail"
        )
        assert (recovery.lost is not None) == (verdict == DAMAGE or after > 0), (
            f"{why}, {recovery_mode}"
        )
        assert keys(left) == front(store, findings), f"{why}, {recovery_mode}"
        opened = copy_files(left)
        assert {finding.status for finding in verified(opened)} == {"clean"}, (
            f"{why}, {recovery_mode}"
        )
        restored = contents(opened, recovery_mode="absolute")
        assert {int(key) for key in restored} == set(front(store, findings)), f"{why}, restored"


def killed(*, sync: bool) -> MemoryStore:
    """Four commits in one segment, of a killed writer."""
    log = node_log(MemoryStore(f"verdicts-{next(numbers)}"))
    for key in range(4):
        log.write(format.ENTRIES, 1, [row(str(key), "v", key + 1)])
        if sync:
            log.sync()
    return copy_files(log.store)


def statuses_of(store: MemoryStore) -> dict[str, set[str]]:
    (path,) = segments(store)
    return {
        "verify": {one.status for one in verified(store) if one.file == path},
        "salvage": {repaired(store, SALVAGE)[0][path]},
        "point-in-time": {repaired(store, POINT_IN_TIME)[0][path]},
    }


@pytest.mark.parametrize("size", [4, 12, 40])
def test_a_zeroed_header_before_frames_is_damage(size: int) -> None:
    """The frames are acknowledged. All readers report damage."""
    store = killed(sync=True)
    (path,) = segments(store)
    overwrite(store, path, bytes(size) + store.read(path)[size:])
    assert statuses_of(store) == {
        who: {"corrupt"} for who in ("verify", "salvage", "point-in-time")
    }
    for mode in ("absolute", "torn-tail"):
        assert (
            refused(lambda mode=mode: node_log(copy_files(store), recovery_mode=mode)) is not None
        )


@pytest.mark.parametrize("size", [0, 4, 12, 40])
def test_a_header_never_whole_is_a_torn_tail(size: int) -> None:
    """All readers report a torn tail."""
    store = killed(sync=True)
    (path,) = segments(store)
    whole = store.read(path)
    born = path.replace("-00000001.wal", "-00000002.wal")
    store.create(born, whole[:size] + bytes(100))
    assert {one.status for one in verified(store) if one.file == born} == {"torn-tail"}
    assert {repaired(store, mode)[0][born] for mode in (SALVAGE, POINT_IN_TIME)} == {"torn-tail"}
    assert node_log(copy_files(store)).recovery.lost is None
    assert len(contents(store)) == 4
    # The same of a segment that the manifest knows is damage: frames were in it.
    store.delete(born)
    overwrite(store, path, whole[:size] + bytes(100))
    assert statuses_of(store) == {
        who: {"corrupt"} for who in ("verify", "salvage", "point-in-time")
    }
    assert refused(lambda: node_log(copy_files(store))) is not None
    assert (
        refused(lambda: [*ClusterLog(Context(store), "default", "embedded").changes()]) is not None
    )


def test_damage_in_an_unsynced_tail_is_a_torn_tail() -> None:
    """All readers report a torn tail."""
    store = killed(sync=False)
    (path,) = segments(store)
    frames = list(SegmentReader(store, path).whole_frames())
    data = bytearray(store.read(path))
    data[frames[1].offset + 14] ^= 1
    overwrite(store, path, bytes(data))
    assert statuses_of(store) == {
        who: {"torn-tail"} for who in ("verify", "salvage", "point-in-time")
    }
    kept = {mode: keys(repaired(store, mode)[1]) for mode in (SALVAGE, POINT_IN_TIME)}
    assert kept == {SALVAGE: [0, 2, 3], POINT_IN_TIME: [0]}
    assert node_log(store).recovery.lost is not None
    assert keys(store) == [0]
