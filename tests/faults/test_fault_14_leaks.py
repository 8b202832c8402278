"""Fault 14: a store releases everything that it opened, also when its open or its close fails."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import ImapWalError
from storage_backends import StorageError, descriptors
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.local import LocalStore
from tests.kit.effort import brief, share
from tests.kit.faults import Cases
from tests.support import embedded


@contextlib.contextmanager
def no_leaks() -> Iterator[None]:
    """The same file descriptors and threads afterwards as before."""

    def held() -> tuple[dict[str, str], list[str]]:
        files = {}
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                files[fd] = os.readlink(f"/proc/self/fd/{fd}")
        own = Path("/proc/self/fd").resolve()
        return {
            fd: name for fd, name in files.items() if not name.startswith(("/proc", str(own)))
        }, sorted(each.name for each in threading.enumerate())

    before = held()
    yield
    assert held() == before


def open_and_close(url: str, times: int, cases: Cases) -> None:
    """Open and close a store this many times, every tenth time with the threads of maintenance."""
    with imap_wal.open(url, node="n") as store:  # loads modules once
        store.map("m")["a"] = 0
        store.archive()
    with no_leaks():
        for number in range(times):
            options: dict[str, Any] = (
                {"durability": "interval", "archive_interval_s": 60} if number % 10 == 0 else {}
            )
            with imap_wal.open(url, node="n", preallocate=False, **options) as store:
                if number % 250 == 0:
                    store.map("m")["a"] = number
            cases(1)
    with imap_wal.open(url, node="n") as store:
        assert store.map("m")["a"] == (times - 1) // 250 * 250


@pytest.mark.timeout(900)  # 75 s of a processor
def test_a_thousand_opens_leave_no_file_descriptor_and_no_thread(
    url: str, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 14: real files, but syncs are quick."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(descriptors, "_sync_data", lambda fd: None)
    open_and_close(url, share(1000), cases)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_three_thousand_opens_leak_nothing(url: str, cases: Cases) -> None:
    """With real syncs. No file descriptor and no thread is left.
    Fault 14, long."""
    open_and_close(url, brief(3000), cases)


def test_failed_opens_and_lives_leak_nothing(tmp_path: Path, cases: Cases) -> None:
    """They fail at any operation. No file descriptor and no thread is left.
    Fault 14: the storage fails at each operation of a life, and at all later ones."""

    def live(storage: FaultyStore) -> None:
        with (
            contextlib.suppress(ImapWalError, StorageError),
            embedded(storage, durability="interval", archive_interval_s=60) as store,
        ):
            store.map("m")["a"] = 1
            store.archive()
            store.map("m")["a"] = 2

    counted = FaultyStore(LocalStore(str(tmp_path / "count")))
    live(counted)
    with no_leaks():
        for at in range(1, counted.count + 1):
            live(
                FaultyStore(
                    LocalStore(str(tmp_path / f"log{at}")), Plan((Fault("error", at=at, times=0),))
                )
            )
            cases(1)


def test_refused_opens_leak_nothing(url: str, cases: Cases) -> None:
    """No file descriptor and no thread is left.
    Fault 14: another writer has the log, or it is damaged."""
    with imap_wal.open(url, node="n") as store:
        store.map("m")["a"] = 1
        with no_leaks():
            for _ in range(100):
                with pytest.raises(imap_wal.WriterLocked):
                    imap_wal.open(url, node="n", durability="interval")
                cases(1)
    (segment,) = Path(url.removeprefix("file://")).rglob("*.wal")
    segment.write_bytes(b"no segment" * 10)
    with no_leaks():
        for _ in range(100):
            with pytest.raises(imap_wal.CorruptLog):
                imap_wal.open(url, node="n", durability="interval")
            cases(1)
