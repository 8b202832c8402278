"""Faults 6, 7, 8: EIO and short writes, a sync that fails and then succeeds, a full disk; on a real
file system by `strace -e inject=`, elsewhere by the wrapper."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import NotAppended, OutcomeUnknown
from storage_backends import NoSpace, Unavailable
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore, forget
from tests.faults.workload import WORK, Life, Reference
from tests.kit.effort import every, step, stride
from tests.kit.faults import Cases, operations
from tests.support import contents, embedded

ROOT = Path(__file__).parents[2]
_names = itertools.count()

INJECTED = {
    "EIO on write": (6, "pwritev,pwrite64", "EIO"),
    "EIO on sync": (7, "fdatasync", "EIO"),
    "EIO on a sync of a file or folder": (7, "fsync", "EIO"),
    "ENOSPC on write": (8, "pwritev,pwrite64", "ENOSPC"),
    "ENOSPC on reserving space": (8, "fallocate", "ENOSPC"),
    "ENOSPC on a new name": (8, "link,linkat,rename,renameat,renameat2", "ENOSPC"),
    "EIO on truncate": (6, "ftruncate", "EIO"),
    "EIO on removing a name": (6, "unlink,unlinkat", "EIO"),
}
"""Fault number, system calls, errno."""


def strace(tmp_path: Path, calls: str, error: str, when: str, rounds: int) -> int:
    """Play the work under strace; returns how many calls were made to fail."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (apt-get install strace)")
    output = tmp_path / "strace"
    run = subprocess.run(
        [
            "strace",
            "-f",
            "-o",
            str(output),
            "-e",
            f"trace={calls}",
            "-e",
            f"inject={calls}:error={error}:when={when}",
            sys.executable,
            "-m",
            "tests.faults.straced",
            str(tmp_path / "log"),
            str(rounds),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run.returncode == 0, f"{calls}:error={error}:when={when}\n{run.stderr[-4000:]}"
    return output.read_text().count("(INJECTED)")


@every(9)
@pytest.mark.parametrize("fault", INJECTED)
def test_occasional_system_call_failures_lose_nothing(
    tmp_path: Path, cases: Cases, fault: str
) -> None:
    """On a real file system. Work continues.
    Faults 6, 7, 8, at the system call: the 7th fails, and each 17th after it, of syncs each 29th.
    A reopen syncs 21 times, so some succeed."""
    _, calls, error = INJECTED[fault]
    which = {"fallocate": "2+3", "fsync": "7+29"}.get(calls, "7+17")
    injected = strace(tmp_path, calls, error, which, 2)
    assert injected >= 2
    cases(injected)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", INJECTED)
@pytest.mark.parametrize("times", [1, 3])
def test_any_one_failing_system_call_loses_nothing(
    tmp_path: Path, cases: Cases, fault: str, times: int
) -> None:
    """On a real file system. Work continues.
    Faults 6, 7, 8, long: each call in turn (of many, some 40), alone and with the two after
    it."""
    _, calls, error = INJECTED[fault]
    number, step = 1, 1
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        injected = strace(folder, calls, error, f"{number}..{number + times - 1}", 1)
        if not injected:
            break
        cases(1)
        step = stride(5 if number >= 20 else 1)
        number += step
    assert number > 3


# ---- the same at every operation, by the wrapper ----


def fail_at(at: int, fault: Fault, seed: int, **options: Any) -> None:
    inner = MemoryStore(f"errors-{next(_names)}")
    faulty = FaultyStore(inner, Plan((fault,), seed))
    reference = Reference()
    life = Life(faulty, reference, **options)
    life.play_through(WORK)
    life.reopen_when_it_can()
    assert faulty.fired, f"operation {at}"
    for more in range(
        fault.times - 1
    ):  # the fault may remain: of some kinds of operation each of these has only one
        life.play_through(
            (
                ("put", f"left{more}", 1),
                ("rotate",),
                ("archive",),
                ("rewrite",),
                ("prune",),
                ("reopen",),
            )
        )
        life.reopen_when_it_can()
    life.play((("put", "more", 1), ("archive",), ("rewrite",), ("prune",), ("reopen",)))
    life.close()
    reference.settle(contents(inner, clock=reference.clock), faulty.plan)
    forget(inner.url.removeprefix("memory://"))


def writing() -> list[tuple[int, str]]:
    """(number among its kind, kind) of every operation of the work that changes the storage."""
    seen: dict[str, int] = {}
    found = []
    for kind in operations():
        seen[kind] = seen.get(kind, 0) + 1
        if kind in (
            "append",
            "sync",
            "create",
            "create_from",
            "replace",
            "open_append",
            "truncate",
            "delete",
        ):
            found.append((seen[kind], kind))
    return found


def test_a_failed_or_short_write_loses_nothing(cases: Cases, seed: int) -> None:
    """At any place. The error is reported.
    Fault 6: every second write; every write in the long form."""
    for at, kind in writing()[:: step(2)]:
        action: Any = "short-write" if kind == "append" and at % 2 else "error"
        fail_at(
            at,
            Fault(
                action,
                at=at,
                kind=kind,
                error=Unavailable,
                when="after" if at % 3 == 0 else "before",
            ),
            seed,
        )
        cases(1)


def test_a_full_storage_is_reported_and_recoverable(cases: Cases, seed: int) -> None:
    """At append, rotate, archive and rewrite. When space returns, work continues.
    Fault 8: full for four writing operations from every third one on; from every one on in the
    long form."""
    for number in range(1, len(writing()) + 1, step(3)):
        kinds = "append|create|create_from|replace|open_append"
        fail_at(
            number, Fault("error", at=max(1, number // 2), kind=kinds, error=NoSpace, times=4), seed
        )
        cases(1)


@pytest.mark.torture
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("error", [Unavailable, NoSpace])
def test_any_failing_storage_operation_loses_nothing(
    cases: Cases, seed: int, when: Any, times: int, error: Any
) -> None:
    """It fails once or four times. The error is reported.
    Faults 6, 8, long: every operation, reading ones too, done before it fails or not."""
    seen: dict[str, int] = {}
    for number, kind in enumerate(operations()):
        seen[kind] = seen.get(kind, 0) + 1
        if number % stride():
            continue
        if kind == "lock" and when == "after":
            # A lock without a holder: that of a process ends with it, a lease expires.
            continue
        fail_at(
            seen[kind],
            Fault("error", at=seen[kind], kind=kind, error=error, when=when, times=times),
            seed,
        )
        cases(1)


# ---- 7: a sync that fails, and would then succeed ----


@pytest.mark.parametrize("at", range(2, 8))
def test_a_failed_sync_is_never_acknowledged_or_retried(
    memory: MemoryStore, cases: Cases, at: int
) -> None:
    """No other sync of that file is tried.
    Fault 7: the storage would answer success the second time, as Linux does after it dropped the
    pages."""
    faulty = FaultyStore(memory, Plan((Fault("error", kind="sync", at=at),)))
    store = embedded(faulty)
    m = store.map("m")
    acknowledged: dict[str, int] = {}
    with pytest.raises(OutcomeUnknown):
        for number in range(10):
            m[f"k{number}"] = number
            acknowledged[f"k{number}"] = number
    before = [operation for operation in faulty.operations if operation.kind == "sync"]
    for attempt in range(3):
        with pytest.raises(NotAppended):
            m[f"late{attempt}"] = 1
    with pytest.raises(NotAppended):
        store.sync()
    with pytest.raises(imap_wal.ImapWalError):
        store.archive()
    assert dict(m.items()) == acknowledged
    store.close()
    assert [operation for operation in faulty.operations if operation.kind == "sync"] == before, (
        "the sync was tried again on a file that is not to be trusted"
    )
    with embedded(memory) as again:
        found = dict(again.map("m").items())
    assert acknowledged.items() <= found.items() and len(found) <= len(acknowledged) + 1
    cases(1)


def test_a_failed_fdatasync_is_the_files_last(tmp_path: Path, cases: Cases) -> None:
    """A real `fdatasync` that fails once is the last one on that file.
    Fault 7, at the system call."""
    output, root = tmp_path / "strace", tmp_path / "log"
    code = (
        "import sys, imap_wal\n"
        "store = imap_wal.open(sys.argv[1], node='n')\n"
        "for number in range(6):\n"
        "    try:\n"
        "        store.map('m')[number] = number\n"
        "        print('ack')\n"
        "    except imap_wal.ImapWalError as error:\n"
        "        print(type(error).__name__)\n"
        "store.close()\n"
    )
    run = subprocess.run(
        [
            "strace",
            "-f",
            "-y",
            "-o",
            str(output),
            "-e",
            "trace=fdatasync,fsync",
            "-e",
            "inject=fdatasync:error=EIO:when=4",
            sys.executable,
            "-c",
            code,
            root.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    assert run.stdout.split() == [
        "ack",
        "ack",
        "OutcomeUnknown",
        "NotAppended",
        "NotAppended",
        "NotAppended",
    ]
    calls = [
        line
        for line in output.read_text().splitlines()
        if re.search(r"(fdatasync|fsync)\(\d+<[^>]*\.wal>", line)
    ]
    assert "(INJECTED)" in calls[-1], "the file was synced again"
    with imap_wal.open(root.as_uri(), node="n") as store:
        found = dict(store.map("m").items())
    assert {0: 0, 1: 1}.items() <= found.items() <= {0: 0, 1: 1, 2: 2}.items()
    cases(1)
