"""One fault at every operation, and at every system call, of a workload that is run
repeatedly."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storage_backends import SegmentStore
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore, forget
from tests.faults.disk import RecordedDisk
from tests.faults.workload import Life, Reference, look_and_go_on
from tests.support import FakeClock

Cases = Callable[[int], None]


_names = itertools.count()


_context = multiprocessing.get_context("forkserver")


_context.set_forkserver_preload(
    [
        "imap_wal",
        "imap_wal.retention.archive",
        "tests.kit.operations",
        "tests.faults.killed_processes",
        "pandas",
        "pyarrow.compute",
        "pyarrow.pandas_compat",
    ]
)  # Arrow needs pandas


def everything(storage: FaultyStore, reference: Reference, **options: Any) -> None:
    life = Life(storage, reference, **options)
    life.play()
    life.close()


def operations(inner: SegmentStore | None = None, **options: Any) -> list[str]:
    """The kinds of storage operation that the workload uses. There are fewer with a storage that
    reports when files changed."""
    counted = FaultyStore(inner or MemoryStore(f"faults-count-{next(_names)}"))
    everything(counted, Reference(), **options)
    return [operation.kind for operation in counted.operations]


def strike_at(
    at: int,
    action: Any,
    seed: int,
    *,
    go_on: bool,
    tear: Any = "prefix",
    when: Any = "before",
    **options: Any,
) -> None:
    """Run the workload with the fault at its `at`-th operation, and check what is left."""
    name = f"faults-{next(_names)}"
    inner = MemoryStore(name)
    reference = Reference()
    faulty = FaultyStore(inner, Plan((Fault(action, at=at, when=when),), seed, tear))
    with pytest.raises(Killed):
        everything(faulty, reference, **options)
    if go_on:
        look_and_go_on(inner, reference, faulty.plan, **options)
    else:
        life = Life(inner, reference, **options)
        life.open(faulty.plan)
        life.close()
    forget(name)


def record(root: Path, **options: Any) -> RecordedDisk:
    """The system calls of the work on a real local disk; the marks are what had been
    acknowledged."""
    with RecordedDisk(str(root)) as disk:
        reference = Reference()
        reference.on_change = lambda: disk.mark(
            (reference.state, reference.pending, reference.clock.now_ms())
        )
        life = Life(LocalStore(str(root)), reference, **options)
        life.play()
        life.close()
    return disk


def check_images(
    disk: RecordedDisk,
    kinds: tuple[tuple[str, str], ...],
    seed: int,
    cases: Cases,
    *,
    every: int = 1,
    go_on_every: int = 8,
    **options: Any,
) -> None:
    """Open a log on whatever may be left after a crash at every (`every`-th) system call."""
    chance = Random(seed)
    for number, (call, kept, note, image) in enumerate(disk.images(kinds, chance, every)):
        name = f"faults-{next(_names)}"
        inner = MemoryStore(name)
        for path, data in image.items():
            inner.create(path, data)
        state, pending, now_ms = note or ({}, None, FakeClock().now_ms())
        reference = Reference(FakeClock(now_ms), dict(state), pending)
        why = f"crash before system call {call}, {kept}, seed {seed}"
        if number % go_on_every == 0:
            look_and_go_on(inner, reference, why, **options)
        else:
            life = Life(inner, reference, **options)
            life.open(why)
            life.close()
        forget(name)
        cases(1)
