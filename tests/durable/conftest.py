"""Fixtures of tests of embedded stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.embedded.store import Store


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Connects, and closes at the end."""
    opened: list[Store] = []

    def connect(folder: str = "log", **options: Any) -> Store:
        options = {"preallocate": False, "socket": tmp_path / "socket", **options}
        opened.append(imap_wal.connect(tmp_path / folder, **options))
        return opened[-1]

    yield connect
    for store in reversed(opened):
        store.close()
