"""A read that was planned before a node was forgotten has the rows of that node, or fails."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.errors import InvalidSetting, LogError, MissingNode
from imap_wal.placement import Placed
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from imap_wal.write.node_log import NodeLog
from pyspark_imap_wal.batch import ImapWalReader
from pyspark_imap_wal.options import Options
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore, forget
from tests.histories import put
from tests.kit.logs import SMALL, append, cluster, node, opened
from tests.kit.nth_call import AtCall
from tests.kit.stream_engine import Engine, archive
from tests.support import FakeClock, copy_files

pytestmark = pytest.mark.spark


@pytest.fixture
def logs(memory: MemoryStore) -> list[NodeLog]:
    found = [node(memory, name) for name in ("n1", "n2")]
    for number, log in enumerate(found, 1):
        append(log, put(f"key of n{number}", "1", (1, 1, number, 1)))
    return found


@pytest.fixture
def store(memory: MemoryStore, logs: list[NodeLog]) -> MemoryStore:
    return memory


def forgotten(store: SegmentStore, name: str = "n2") -> None:
    """A node that is covered by a snapshot is forgotten."""
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    forget_node(cluster(store), name)


def keys(reader: ImapWalReader, parts: list[Any]) -> list[str]:
    return [
        line["key"].decode()
        for part in parts
        for batch in reader.read(part)
        for line in batch.to_pylist()
    ]


@pytest.mark.parametrize("options", [{}, {"mode": "latest"}, {"mode": "latest", "buckets": "3"}])
@pytest.mark.parametrize("archived", [False, True])
def test_a_planned_read_does_not_leave_out_a_forgotten_node(
    store: MemoryStore, options: dict[str, str], archived: bool
) -> None:
    log = node(store, "n3")
    append(log, put("another key", "1", (1, 1, 3, 1)))
    if archived:
        log.rotate()
        archive(log)
    reader = ImapWalReader(Options.parse({"path": store.url, **options}))
    parts = list(reader.partitions())
    forgotten(store, "n3")
    with pytest.raises(MissingNode, match="forgotten"):
        keys(reader, parts)
    assert len(keys(reader, list(reader.partitions()))) == 3


def test_a_first_batch_does_not_leave_out_a_forgotten_node(store: MemoryStore) -> None:
    engine = Engine(store.url)
    end = engine.reader.latestOffset(engine.start, None)
    forgotten(store)
    with pytest.raises((MissingNode, InvalidSetting)):
        engine.lines(end)


@pytest.mark.parametrize("read", [False, True])
def test_a_stream_misses_no_change_of_a_forgotten_node(
    store: MemoryStore, logs: list[NodeLog], read: bool
) -> None:
    engine = Engine(store.url)
    engine.rest()
    append(logs[1], put("late", "1", (1, 1, 2, 2)))
    if read:
        engine.rest()
    forgotten(store)
    if read:
        assert engine.rest() == []
    else:
        with pytest.raises(MissingNode, match="has not read its changes"):
            engine.rest()
    append(opened(store, FakeClock(), "n2"), put("new", "1", (1, 1, 3, 1)))
    if read:
        assert len(engine.rest()) == 1
    else:
        with pytest.raises(MissingNode, match="has not read its changes"):
            engine.rest()
    continued = Engine(store.url, partial="true")
    continued.start = engine.start
    assert len(continued.rest()) == (0 if read else 1)


def test_a_registered_reader_prevents_forgetting_a_node(store: MemoryStore) -> None:
    engine = Engine(store.url, reader="daily")
    with pytest.raises(InvalidSetting, match="reader 'daily' has not read"):
        forgotten(store)
    assert "'daily'" in forget_node(cluster(store), "n2", dry_run=True).refused
    engine.rest()
    engine.reader.commit(engine.start)
    forgotten(store)


def test_a_planned_read_refuses_a_new_log_of_that_name(store: MemoryStore) -> None:
    reader = ImapWalReader(Options.parse({"path": store.url}))
    parts = list(reader.partitions())
    forgotten(store)
    append(opened(store, FakeClock(), "n2"), put("new", "1", (1, 1, 3, 1)))
    with pytest.raises(MissingNode, match="replaced it"):
        keys(reader, parts)


def test_a_node_forgotten_at_any_call_of_a_read(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read has all rows, or fails."""
    outcomes = []
    for number in itertools.count():
        place = copy_files(store)
        gate = AtCall(place, number, lambda place=place: forgotten(place))
        monkeypatch.setattr(
            "imap_wal.context.open_place", lambda place, gate=gate, **_: Placed(gate, place)
        )
        reader = ImapWalReader(Options.parse({"path": place.url}))
        try:
            found = sorted(keys(reader, list(reader.partitions())))
            assert found == ["key of n1", "key of n2"], f"call {number}"
            outcomes.append("read")
        except (MissingNode, LogError):
            outcomes.append("refused")
        forget(place.url.removeprefix("memory://"))
        if gate.calls <= number:
            break
    assert {"read", "refused"} == set(outcomes)
