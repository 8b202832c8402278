"""Published tables of a log in memory, as their logs say."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.manifest import readers
from imap_wal.manifest.reader_manifest import Base
from imap_wal.publish.delta import DeltaTable
from imap_wal.publish.delta_log import DeltaLog, DeltaState
from imap_wal.publish.publication import PublishedTable, publish
from imap_wal.read.cluster import ClusterLog
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore
from tests.histories import put
from tests.kit.logs import append, node
from tests.support import FakeClock

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

FOLDER = "ns/c/snapshot/orders"


_seeds = itertools.count(1000)
"""None is that of `cluster`, or of a node: a file would get the name of another one."""


def written(log: NodeLog, request: int, **entries: str | None) -> int:
    """Append changes; None: a deletion. Returns the next request."""
    for number, (key, value) in enumerate(entries.items(), request):
        append(log, put(key, value, (1, 0, 1, number)))
    return request + len(entries)


def tombstoned(store: SegmentStore) -> NodeLog:
    """The log of a node, beside one whose deletion each rewrite keeps: so each file of the
    snapshot with it is copied."""
    first, second = node(store), node(store, "n2")
    append(second, put("b", "1", (1, 0, 1, 1)))
    append(first, put("gone", "2", (2, 0, 2, 1)), put("gone", None, (2, 0, 2, 2)))
    return second


def plain(store: SegmentStore) -> NodeLog:
    """The log of a node whose snapshot is published as it is."""
    log = node(store, "n2")
    append(log, put("b", "1", (1, 0, 1, 1)))
    return log


def table(store: SegmentStore, folder: str = FOLDER) -> DeltaState:
    return DeltaLog(store, folder).read()


def rows(store: SegmentStore, folder: str = FOLDER) -> dict[str, str]:
    """Key → value of the rows of the table."""
    found: list[tuple[str, str]] = []
    for path, content in table(store, folder).files.items():
        data = store.read(f"{folder}/{path}")
        assert len(data) == content["size"]
        read = pq.read_table(io.BytesIO(data)).to_pylist()
        assert len(read) == json.loads(content["stats"])["numRecords"]
        found += [(row["key"].decode(), row["value"].decode()) for row in read]
    assert len(dict(found)) == len(found)
    return dict(found)


def kept(store: SegmentStore) -> list[Base]:
    """What the reader keeps for the table."""
    states = readers.readers_of(store, "ns/c").values()
    return [base for state in states for base in state.bases]


def published(store: SegmentStore, **options: Any) -> PublishedTable:
    """By a process of its own, so with its own random names."""
    context = Context(store, clock=FakeClock(), randomness=SeededRandomness(next(_seeds)))
    log = ClusterLog(context, "ns", "c")
    return publish(log, "orders", DeltaTable(log, "orders"), **options)


def commit(store: SegmentStore, version: int) -> str:
    return store.read(f"{FOLDER}/_delta_log/{version:020d}.json").decode()


def committed(store: SegmentStore) -> list[int]:
    """The generation of each version."""
    versions = range(table(store).version + 1)
    actions = [
        json.loads(line)
        for version in versions
        for line in commit(store, version).split("\n")
        if line
    ]
    return [action["txn"]["version"] for action in actions if "txn" in action]


def iceberg_catalog(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The catalog "lake", in SQLite, also for commands of this process. pyiceberg reads its
    configuration only once in a process."""
    from pyiceberg.catalog import load_catalog  # takes a second

    settings = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
    made = load_catalog("lake", **settings)
    monkeypatch.setattr("imap_wal.publish.iceberg.load_catalog", {"lake": made}.__getitem__)
    return made
