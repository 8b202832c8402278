"""Fixtures of all tests."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_backends.memory import MemoryStore, forget


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
    """What a test leaves to chance; `IMAP_WAL_SEED=… pytest …` replays it. Printed, so a failing test shows it."""
    chosen = int(os.environ.get("IMAP_WAL_SEED") or random.SystemRandom().randrange(2**32))
    print(f"replay with IMAP_WAL_SEED={chosen}")
    return chosen
