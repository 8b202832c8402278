"""A long open logs its progress."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import imap_wal
from storage_backends.memory import MemoryStore
from tests.support import FakeClock, copy_files, embedded


class Slow(FakeClock):
    """A second passes with every call."""

    def monotonic(self) -> float:
        self.advance(1)
        return super().monotonic()


def test_a_long_open_logs_its_progress(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "imap_wal")
    with embedded(memory, segment_bytes=8 * 1024) as store:
        for number in range(40):
            store.map("m")[number] = "x" * 5_000
        killed = copy_files(memory)
    assert caplog.messages == [], "nothing took long"
    with imap_wal.open(
        killed.url, storage=killed, node="n1", clock=Slow(), preallocate=False
    ) as store:
        assert len(store.map("m")) == 40
    recovering = [
        text for text in caplog.messages if text.startswith("recovering the log of node 'n1': ")
    ]
    opening = [
        text
        for text in caplog.messages
        if text.startswith("opening the maps of cluster 'embedded': ")
    ]
    for lines in (recovering, opening):
        assert len(lines) >= 2
        assert "changes in" in lines[0]
        assert "a second" in lines[0]
        assert ": done, 40 changes in" in lines[-1]
    assert "%" in opening[0]
    assert "imap-wal rewrite" in opening[-1]
    assert len(caplog.messages) < 40, "one line in five seconds"


def test_replacement_of_a_missing_log_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new log in place of a missing one is logged. `recovery_policy="partial"` used to begin one
    without a text that entries were lost."""
    with imap_wal.open(tmp_path, node="n1") as store:
        store.map("m")["a"] = 1
    shutil.rmtree(tmp_path / "default/embedded/nodes/n1")
    with imap_wal.open(tmp_path, node="n1", recovery_policy="partial") as store:
        assert dict(store.map("m")) == {}
    (text,) = caplog.messages
    assert "node 'n1' continues with a new log" in text
    caplog.clear()
    with imap_wal.open(tmp_path, node="n1") as store:
        assert dict(store.map("m")) == {}
    assert caplog.messages == [], "once"


def test_a_node_that_is_left_out_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for node in ("n1", "n2"):
        with imap_wal.open(tmp_path, node=node) as store:
            store.map("m")[node] = 1
    shutil.rmtree(tmp_path / "default/embedded/nodes/n2")
    with imap_wal.open(tmp_path, node="n1", recovery_policy="partial") as store:
        assert dict(store.map("m")) == {"n1": 1}
    assert caplog.messages == [
        "the entries that are only in the log of node 'n2' are left out: there is no log in "  # noqa: ISC004
        "default/embedded/nodes/n2"
    ]
