"""Storage that fails under the embedded map: the caller gets an error, memory is unchanged, and the
next open shows the outcome."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import ImapWalError, NotAppended, OutcomeUnknown, StorageUnavailable
from storage_backends import NoSpace
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore
from tests.kit import disks
from tests.kit.effort import every, step
from tests.support import contents, copy_files, embedded, eventually

WAL = "*/wal/*"


def test_failed_write_leaves_memory_unchanged_and_log_reopens(
    memory: MemoryStore, seed: int
) -> None:
    """After a failed write, memory is unchanged, nothing is acknowledged, and reopening works."""
    faulty = FaultyStore(memory, Plan((Fault("short-write", at=3, path=WAL),), seed))
    store = embedded(faulty)
    m = store.map("m")
    m["kept"] = 1
    with pytest.raises(NotAppended, match="nothing was appended"):
        m.update({"kept": 2, "lost": 2})
    for change in (
        lambda: m.__setitem__("x", 1),
        lambda: m.__delitem__("kept"),
        lambda: m.clear(),
        lambda: m.put("y", 1, ttl=9),
    ):
        with pytest.raises(NotAppended, match="nothing more is appended"):
            change()
    assert dict(m.items()) == {"kept": 1}
    store.close()
    with embedded(memory) as again:
        assert dict(again.map("m").items()) == {"kept": 1}
        again.map("m")["x"] = 1
    assert contents(memory) == {"kept": 1, "x": 1}


def test_failed_sync_is_unknown_until_reopening(
    memory: MemoryStore,
) -> None:
    """After a failed sync, the outcome is unknown, memory is unchanged, and reopening shows it."""
    faulty = FaultyStore(memory, Plan((Fault("error", at=3, kind="sync", path=WAL),)))
    store = embedded(faulty)
    m = store.map("m")
    m["k"] = "old"
    with pytest.raises(OutcomeUnknown):
        m["k"] = "new"
    assert m["k"] == "old"
    store.close()
    assert contents(memory)["k"] in ("old", "new")


@every(3)
@pytest.mark.parametrize(
    "kind",
    [
        "append",
        "sync",
        "open_append",
        "truncate",
        "exists",
        "create",
        "list",
        "lock",
        "read",
        "delete",
        "replace",
        "size",
    ],
)
def test_single_storage_failure_is_reported_and_loses_nothing(
    memory: MemoryStore, kind: str
) -> None:
    """Any single operation of the storage fails: only errors of imap-wal reach the caller, and
    acknowledged changes survive."""
    counted = FaultyStore(MemoryStore(f"count-{kind}"))
    workload(counted, {})
    times = sum(operation.kind == kind for operation in counted.operations)
    for at in range(1, times + 1, min(step(), 4)):
        inner = MemoryStore(f"{kind}-{at}-{memory.url}")
        acked: dict[str, Any] = {}
        faulty = FaultyStore(inner, Plan((Fault("error", at=at, kind=kind, error=NoSpace),)))
        doubtful = workload(faulty, acked)
        assert faulty.fired, f"{kind} {at} never happened"
        left = contents(inner)
        for key, value in acked.items():
            assert left.get(key) == value or (key in doubtful and left.get(key) in doubtful[key]), (
                f"{kind} {at} lost {key}"
            )


def workload(storage: FaultyStore, acked: dict[str, Any]) -> dict[str, list[Any]]:
    """Changes, a rotation, an archive, a reopen. `acked`: the acknowledged changes; returns those
    in doubt."""
    doubtful: dict[str, list[Any]] = {}
    for life in range(2):
        try:
            with embedded(storage, segment_bytes=400) as store:
                m = store.map("m")
                for number in range(6):
                    key, value = f"k{number % 4}", f"{life}.{number}"
                    try:
                        m[key] = value
                        acked[key] = value
                        doubtful.pop(key, None)
                    except OutcomeUnknown:
                        doubtful.setdefault(key, []).append(value)
                    except NotAppended:
                        pass
                store.archive()
        except ImapWalError:
            continue
    return doubtful


def test_storage_failure_at_open_leaves_no_lock(
    memory: MemoryStore,
) -> None:
    """A storage that fails during an open is unavailable, and no lock is left."""
    counted = FaultyStore(MemoryStore("count-open"))
    embedded(counted).close()
    for at in range(1, counted.count + 1):
        inner = MemoryStore(f"open-{at}-{memory.url}")
        faulty = FaultyStore(inner, Plan((Fault("error", at=at),)))
        with suppress(StorageUnavailable):  # nothing else; and some operations may fail unharmed
            embedded(faulty).close()
        assert not inner._medium.locks, f"operation {at}: {faulty.operations[at - 1]}"
        embedded(inner).close()


@every(2)
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_at_any_operation_keeps_what_was_acknowledged(
    memory: MemoryStore, when: Any, seed: int
) -> None:
    """A kill at any operation of a process keeps all acknowledged changes."""
    counted = FaultyStore(MemoryStore(f"count-kill-{when}"))
    workload(counted, {})
    for at in range(1, counted.count + 1, 3 * min(step(), 3)):
        inner = MemoryStore(f"kill-{when}-{at}-{memory.url}")
        acked: dict[str, Any] = {}
        faulty = FaultyStore(inner, Plan((Fault("kill", at=at, when=when),), seed))
        try:
            workload(faulty, acked)
        except Killed:
            pass
        left = contents(inner)
        for key, value in acked.items():
            life, number = value.split(".")
            later = [f"{life}.{int(number) + 4}", f"{int(life) + 1}.{int(number) % 4}"]
            assert left.get(key) in (value, *later), f"{faulty.plan} lost {key}"


def test_async_reports_a_failure_to_the_next_caller(
    memory: MemoryStore,
) -> None:
    """`async` reports a failure to the next caller, and does not change memory."""
    faulty = FaultyStore(
        memory, Plan((Fault("error", at=2, kind="append", path=WAL, times=0, error=NoSpace),))
    )
    store = embedded(faulty, durability="async")
    m = store.map("m")
    m["taken"] = 1
    eventually(lambda: store.committer.failure, "the background commit failed")
    with pytest.raises(NotAppended, match="planned fault"):
        m["refused"] = 1
    assert "refused" not in m
    with pytest.raises(NotAppended):
        store.sync()
    store.close()


def test_failed_background_archive_is_reported_and_loses_nothing(
    memory: MemoryStore,
) -> None:
    """The error of a failed background archive is kept for reports, and nothing is lost."""
    faulty = FaultyStore(memory, Plan((Fault("error", kind="create_from", times=2),)))
    store = embedded(faulty, segment_bytes=400, max_total_wal_size=400)
    m = store.map("m")
    for number in range(30):
        m[number] = number
    eventually(
        lambda: (
            store.writer.maintenance.archive_error
            or any(file.path.endswith(".parquet") for file in memory.list(""))
        ),
        "an archive was tried",
    )
    assert contents(memory) == {number: number for number in range(30)}
    for number in range(30, 60):
        m[number] = number
    eventually(
        lambda: any(file.path.endswith(".parquet") for file in memory.list("")),
        "a later archive succeeded",
    )
    store.close()
    assert contents(memory) == {number: number for number in range(60)}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    with disks.needed_disk(tmp_path / "disk", 1) as disk:
        yield disk


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is of Linux")
@pytest.mark.parametrize("preallocate", [False, True])
def test_full_disk_fails_puts_and_loses_nothing_acknowledged(
    small_disk: Path, preallocate: bool
) -> None:
    """On a full disk the put fails and memory is unchanged. When the disk has space again, all
    acknowledged changes are there."""
    url = f"file://{small_disk}/log"
    acked: dict[int, str] = {}
    store = imap_wal.open(url, node="n", segment_bytes=128 * 1024, preallocate=preallocate)
    m = store.map("m")
    with pytest.raises((NotAppended, OutcomeUnknown), match="No space left on device"):
        for number in range(10_000):
            m[number] = "x" * 2000
            acked[number] = "x" * 2000
    assert len(acked) > 300
    assert dict(m.items()) == acked
    with pytest.raises(NotAppended, match="No space left"):
        m["more"] = 1
    try:
        store.close()
    except ImapWalError:
        pass  # its manifest may not fit either
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    with imap_wal.open(url, node="n", segment_bytes=128 * 1024, preallocate=preallocate) as again:
        assert dict(again.map("m").items()) == acked
        again.map("m")["more"] = 1
    with imap_wal.open(url, node="n") as again:
        assert again.map("m")["more"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is of Linux")
def test_opening_on_a_full_disk_is_storage_unavailable(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * (1024 * 1024))
    with pytest.raises(StorageUnavailable, match="No space left on device"):
        imap_wal.open(f"file://{small_disk}/log", node="n")


def test_uncommitted_changes_of_dead_process_were_never_acknowledged(
    memory: MemoryStore,
) -> None:
    store = embedded(memory)
    store.map("m")["a"] = 1
    left = copy_files(memory)
    store.map("m")["b"] = 2
    assert contents(left) == {"a": 1}
