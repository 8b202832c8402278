"""One Spark session for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_backends import SegmentStore, open_store


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark_imap_wal.session import session

    made = session(
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        }
    )
    yield made
    made.stop()


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    """An empty store on this machine's disk."""
    return open_store(str(tmp_path))
