"""Fixtures of all tests."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_backends.memory import MemoryStore, forget


def _process_state() -> dict[str, object]:
    log = logging.getLogger("imap_wal")
    return {
        "the level of the logger 'imap_wal'": log.level,
        "the handlers of the logger 'imap_wal'": list(log.handlers),
        "the working directory": os.getcwd(),
        "the handler of SIGINT": signal.getsignal(signal.SIGINT),
        "the handler of SIGTERM": signal.getsignal(signal.SIGTERM),
    }


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """What belongs to the process is afterwards as it was before: otherwise the next test that
    depends on it fails, and only in the order of that day."""
    before = _process_state()
    yield
    after = _process_state()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, f"this test changed (before, after): {changed}"


@pytest.fixture
def sigint() -> Iterator[None]:
    """SIGINT raises `KeyboardInterrupt`, also where the tests were started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The root of a log that nobody has written yet."""
    return f"file://{tmp_path}/log"


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    """An empty store in this process's memory."""
    name = f"test-{os.urandom(8).hex()}"
    yield MemoryStore(name)
    forget(name)


@pytest.fixture
def seed() -> int:
    """What a test leaves to chance; `IMAP_WAL_SEED=… pytest …` replays it. Printed, so a failing
    test shows it."""
    chosen = int(os.environ.get("IMAP_WAL_SEED") or random.SystemRandom().randrange(2**32))
    print(f"replay with IMAP_WAL_SEED={chosen}")
    return chosen
