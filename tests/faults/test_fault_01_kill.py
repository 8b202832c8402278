"""Fault 1: SIGKILL, at every storage operation, at every system call, and at random moments."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

import imap_wal
from storage_backends.local import LocalStore
from tests.faults import killed_processes
from tests.faults.workload import Reference, look_and_go_on
from tests.kit.effort import brief, every, share, step, stride, thorough
from tests.kit.faults import Cases, _context, check_images, operations, record, strike_at
from tests.kit.operations import ACK, apply
from tests.support import FakeClock


def test_a_kill_at_every_storage_operation_loses_nothing(cases: Cases, seed: int) -> None:
    """Storage operations of append, rotate, manifest, archive, rewrite and prune.
    Fault 1."""
    kinds = operations()
    assert {
        "append",
        "sync",
        "create",
        "create_from",
        "delete",
        "truncate",
        "lock",
        "open_append",
    } <= set(kinds)
    for at in range(1, len(kinds) + 1, step()):
        strike_at(at, "kill", seed, go_on=at % (8 * step()) == 1)
        cases(1)


@pytest.mark.torture
@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_every_storage_operation_loses_nothing(
    cases: Cases, seed: int, preallocate: bool, when: str
) -> None:
    """Before and after each operation. Work continues.
    Fault 1, long."""
    for at in range(1, len(operations(preallocate=preallocate)) + 1, stride()):
        strike_at(at, "kill", seed, go_on=True, when=when, preallocate=preallocate)
        cases(1)


def test_a_kill_at_every_system_call_loses_nothing(tmp_path: Path, cases: Cases, seed: int) -> None:
    """Fault 1, inside the operations of the local backend."""
    check_images(record(tmp_path / "disk"), (("all", "all"),), seed, cases, every=2)


@pytest.mark.torture
@pytest.mark.parametrize("preallocate", [False, True])
def test_work_continues_after_a_kill_at_every_system_call(
    tmp_path: Path, cases: Cases, seed: int, preallocate: bool
) -> None:
    """Nothing is lost.
    Fault 1, inside the operations of the local backend, long."""
    disk = record(tmp_path / "disk", preallocate=preallocate)
    check_images(
        disk, (("all", "all"),), seed, cases, go_on_every=stride(), preallocate=preallocate
    )


# ---- real processes, real SIGKILL ----


def work_killed_at(root: Path, at: int) -> bool:
    """False: the work was done before."""
    ours, theirs = _context.Pipe(duplex=False)
    child = _context.Process(
        target=killed_processes.work_until_killed, args=(str(root), at, theirs)
    )
    child.start()
    theirs.close()
    note: Any = ({}, None, FakeClock().now_ms())
    try:
        while True:
            message = ours.recv()
            if message == "done":
                child.join(30)
                return False
            note = message
    except EOFError:
        pass
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    state, pending, now_ms = note
    look_and_go_on(
        LocalStore(str(root)),
        Reference(FakeClock(now_ms), state, pending),
        f"SIGKILL before storage operation {at}",
    )
    return True


@thorough
def test_a_process_killed_at_storage_operations_loses_nothing(
    tmp_path: Path, cases: Cases, seed: int
) -> None:
    """The process is really killed, at storage operations of every kind.
    Fault 1, with processes."""
    kinds = operations(LocalStore(str(tmp_path / "counted")))
    chance = Random(seed)
    for kind in sorted(set(kinds)):
        at = 1 + chance.choice([number for number, each in enumerate(kinds) if each == kind])
        assert work_killed_at(tmp_path / f"log{at}", at), f"{kind}, seed {seed}"
        cases(1)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_process_really_killed_at_every_storage_operation_loses_nothing(
    tmp_path: Path, cases: Cases
) -> None:
    """Fault 1, with processes, long."""
    at = 1
    while work_killed_at(tmp_path / f"log{at}", at):
        cases(1)
        at += stride()
    assert at > 300


def kill_at_random(
    url: str, durability: str, seed: int, starts: list[int], chance: Random
) -> list[int]:
    """Let a child write, archive, rewrite and prune, and kill it some time after some
    acknowledgements; returns, for each thread, the number of its first operation that was not
    acknowledged. Reads to the last byte that the child had sent."""
    ours, theirs = _context.Pipe(duplex=False)
    child = _context.Process(
        target=killed_processes.write_and_shrink_until_killed,
        args=(url, durability, seed, starts, theirs),
    )
    child.start()
    theirs.close()
    acks, delay = chance.choice((0, 1, 2, 5, 15)), chance.random() * 0.01
    done, data, killed = list(starts), b"", False
    while True:
        if not killed and len(data) >= acks * ACK.size:
            end = time.monotonic() + delay
            while (left := end - time.monotonic()) > 0 and select.select([ours], [], [], left)[0]:
                part = os.read(ours.fileno(), 65536)
                assert part, "the child ended early"
                data += part
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            killed = True
        part = os.read(ours.fileno(), 65536)
        if not part:
            break
        data += part
    child.join(30)
    ours.close()
    assert child.exitcode == -signal.SIGKILL, f"the child ended early with {child.exitcode}"
    for thread, number in ACK.iter_unpack(data):
        assert number == done[thread]
        done[thread] = number + 1
    return done


def kill_again_and_again(
    url: str, durability: str, seed: int, kills: int, cases: Cases, threads: int = 3
) -> None:
    """After each kill: the log has what each thread had acknowledged, or that and the whole of the
    one operation that was under way."""
    chance = Random(seed)
    states: list[dict[str, Any]] = [{} for _ in range(threads)]
    done = [0] * threads
    for kill in range(kills):
        before, done = done, kill_at_random(url, durability, seed, done, chance)
        with imap_wal.open(url, node="n") as store:
            found = dict(store.map("m").items())
        for thread in range(threads):
            for number in range(before[thread], done[thread]):
                apply(states[thread], seed, thread, number)
            mine = {key: value for key, value in found.items() if key.startswith(f"{thread}.")}
            one_more = dict(states[thread])
            apply(one_more, seed, thread, done[thread])
            assert mine in (states[thread], one_more), (
                f"kill {kill}, seed {seed}, thread {thread}, {done[thread]} acknowledged"
            )
            if mine != states[thread]:
                states[thread] = one_more
                done[thread] += 1
        cases(1)
    assert sum(done) > kills


@every(2)
@pytest.mark.parametrize("durability", ["always", "os"])
def test_two_hundred_kills_at_random_moments_lose_nothing(
    url: str, durability: str, cases: Cases, seed: int
) -> None:
    """While writing, archiving, rewriting and pruning.
    Fault 1, with processes: 100 for each durability that promises to survive a kill."""
    kill_again_and_again(url, durability, seed, share(100), cases)


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("durability", ["always", "os"])
def test_ten_thousand_kills_at_random_moments_lose_nothing(
    url: str, durability: str, cases: Cases, seed: int
) -> None:
    """While writing, archiving, rewriting and pruning.
    Fault 1, with processes: 5,000 for each durability that promises to survive a kill, on 25 logs;
    a single log that is killed thousands of times is rarely open long enough to archive, so the
    test would read segments only."""
    for log in range(brief(25)):
        kill_again_and_again(f"{url}/{log}", durability, seed + log, 200, cases)


def test_a_killed_holder_leaves_the_log_free_at_once(url: str, seed: int) -> None:
    """Fault 1, with a process."""
    kill_at_random(url, "always", seed, [0], Random(seed))
    imap_wal.open(url, node="n").close()


def test_the_recorded_disk_is_the_disk(tmp_path: Path) -> None:
    """The system-call tests depend on this: replayed to the end, the record has every file of the
    real folder, byte for byte."""
    root = tmp_path / "disk"
    images = list(record(root, preallocate=True).images((("all", "all"),), Random(0)))
    assert images[-1][3] == {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
