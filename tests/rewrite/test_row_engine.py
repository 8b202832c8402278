"""The rewrite engine of an install without pyarrow (`imap_wal.rewrite.row_engine`), and what reads
its files."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal import arrow_library
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, MissingLibrary, ShortLog
from imap_wal.inspect.finding import Deadline, Finding
from imap_wal.inspect.inventory import take_inventory
from imap_wal.inspect.verify import check, plan
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.newest import index
from imap_wal.rewrite import compaction, row_engine
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.row_engine import RowEngine
from imap_wal.rewrite.run import rewrite
from storage_backends import SegmentStore
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore, forget
from tests import histories
from tests.histories import Cluster, steps
from tests.kit.effort import share, thorough
from tests.kit.logs import SMALL
from tests.kit.repairs import repaired
from tests.kit.row_engine import compare
from tests.support import copy_files, embedded, overwrite

_numbers = itertools.count()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compactions as if pyarrow was not installed."""
    monkeypatch.setattr(compaction, "is_installed", lambda: False)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_engine, "PART_BYTES", 200)
    monkeypatch.setattr(index, "PAGE_BYTES_MAX", 20)


def parts(store: Any) -> list[str]:
    return [file.path for file in store.list("") if "/part-" in file.path]


class EitherEngine(LocalEngine):
    """Rows and columns in turns; each rewrite of rows has the result of one by columns."""

    def run(self, plan: Any, log: Any) -> Any:
        if next(_numbers) % 2:
            return super().run(plan, log)
        expected = LocalEngine.run(self, replace(plan, generation=plan.generation + 1000), log)
        result = RowEngine(self._settings).run(plan, log)
        compare(result, expected, log, kept=False)
        return result


@settings(
    max_examples=share(50, ci=3),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=steps)
def test_logs_may_mix_both_forms_of_snapshots(
    history: list[tuple[str, int, int, int]],
) -> None:
    """After any history, whichever engine ran when: a restore has the newest entry of every key."""
    name = f"row-engine-{next(_numbers)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histories, "LocalEngine", EitherEngine)
        both = Cluster(MemoryStore(name))
        try:
            both.play(history)
            both.check()
            for kind in ("rewrite", "prune", "rewrite", "prune", "rewrite", "crash"):
                both.step(kind, "n1", "orders", b"k0")
                both.check()
        finally:
            both.close()
            forget(name)


changes = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "delete", "clear", "compact", "reopen", "columns"]),
        st.integers(0, 5),
        st.integers(0, 99),
    ),
    max_size=12,
)


@settings(
    max_examples=share(300, ci=5),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(changes=changes, kill=st.integers(1, 200), after=st.booleans())
def test_a_store_without_pyarrow_is_a_dict_despite_crashes(
    plain: None, changes: list[tuple[str, int, int]], kill: int, after: bool
) -> None:
    """The process is killed at any storage call, also of a compaction; `columns`: an install with
    pyarrow rewrites the log meanwhile."""
    name = f"row-engine-{next(_numbers)}"
    inner = MemoryStore(name)
    fault = Fault("kill", at=kill, when="after" if after else "before")
    faulty: Any = FaultyStore(inner, Plan((fault,)))
    model: dict[str, int] = {}
    pending: dict[str, int] | None = None
    store = None
    try:
        try:
            store = embedded(faulty, auto_rewrite_percentage=0)
            for kind, key, value in changes:
                orders = store.map("orders")
                pending = dict(model)
                if kind == "put":
                    pending[f"k{key}"] = value
                    orders[f"k{key}"] = value
                elif kind == "delete":
                    pending.pop(f"k{key}", None)
                    orders.pop(f"k{key}", None)
                elif kind == "clear":
                    pending.clear()
                    orders.clear()
                elif kind == "compact":
                    store.compact()
                else:
                    store.close()
                    if kind == "columns":
                        log = cluster_of_embedded(faulty)
                        rewrite(log, LocalEngine(SMALL))
                    store = embedded(faulty, auto_rewrite_percentage=0)
                model, pending = pending, None
            store.close()
        except Killed:
            pass
        left = copy_files(inner)
        with embedded(left, auto_rewrite_percentage=0) as again:
            found = dict(again.map("orders").items())
            assert found in (model, model if pending is None else pending), f"kill at {kill}"
            again.compact()
        with embedded(left, auto_rewrite_percentage=0) as again:
            assert dict(again.map("orders").items()) == found
    finally:
        forget(name)


def cluster_of_embedded(store: Any) -> Any:
    return ClusterLog(Context(store), "default", "embedded")


def newest_parts(store: Any) -> list[str]:
    snapshots = cluster_of_embedded(store).manifest().snapshots.values()
    return [path for snapshot in snapshots for path in snapshot.paths]


def test_a_kill_at_storage_calls_of_a_compaction(plain: None, small_parts: None) -> None:
    strike("kill", "before", step=8)


@thorough
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("action", ["kill", "error"])
def test_a_fault_at_every_storage_call_of_a_compaction(
    plain: None, small_parts: None, action: Any, when: Any
) -> None:
    strike(action, when)


def strike(action: Any, when: Any, step: int = 1) -> None:
    """A fault at every storage call (at every `step`-th) of a compaction: nothing is lost, and the
    next one is whole."""
    base = MemoryStore(f"row-engine-{next(_numbers)}")
    with embedded(base) as store:
        store.map("orders").update({f"k{number}": number for number in range(20)})
        store.compact()
        store.map("orders").update({f"k{number}": -number for number in range(0, 20, 3)})
        del store.map("orders")["k1"]
        expected = dict(store.map("orders").items())
    counted: Any = FaultyStore(copy_files(base))
    with embedded(counted, auto_rewrite_percentage=0) as store:
        first = counted.count
        store.compact()
        last = counted.count
    assert last - first > 30
    for at in range(first + 1, last + 1, step):
        inner = copy_files(base)
        faulty: Any = FaultyStore(inner, Plan((Fault(action, at=at, when=when),)))
        store = embedded(faulty, auto_rewrite_percentage=0)
        with contextlib.suppress(Killed, imap_wal.ImapWalError):
            store.compact()
        if action == "error":
            store.close()
        left = copy_files(inner)
        with embedded(left, auto_rewrite_percentage=0) as again:
            assert dict(again.map("orders").items()) == expected, f"{action} {when} call {at}"
            again.compact()
        with embedded(left, auto_rewrite_percentage=0) as again:
            assert dict(again.map("orders").items()) == expected, f"{action} {when} call {at}"


@pytest.fixture
def log(memory: MemoryStore, plain: None, small_parts: None) -> MemoryStore:
    """A log whose only entries are in segment snapshots."""
    with embedded(memory) as store:
        store.map("orders").update({f"k{number}": number for number in range(20)})
        store.map("other")["x"] = "y"
        store.compact()
    assert len(parts(memory)) > 3 and all(path.endswith(".wal") for path in parts(memory))
    return memory


def test_a_rewrite_with_pyarrow_makes_parquet(log: MemoryStore) -> None:
    with embedded(log) as store:
        store.map("orders")["k1"] = -1
        expected = dict(store.map("orders").items())
    rewrite(cluster_of_embedded(log), LocalEngine(SMALL))
    forms = {path.split("/")[-3]: path.rpartition(".")[2] for path in newest_parts(log)}
    assert forms == {"orders": "parquet", "other": "parquet"}, "also of a map without changes"
    with embedded(log) as store:
        assert dict(store.map("orders").items()) == expected
        assert dict(store.map("other").items()) == {"x": "y"}


def test_verify_notices_a_damaged_segment_snapshot(log: MemoryStore) -> None:
    path = newest_parts(log)[0]
    assert {each.status for each in verified(log)} == {"clean"}
    data = log.read(path)
    overwrite(log, path, data[:-3] + b"???")
    (damage,) = [each for each in verified(log) if each.status != "clean"]
    assert (damage.file, damage.status) == (path, "corrupt") and damage.records
    with pytest.raises(CorruptLog):
        embedded(log)
    log.delete(path)
    with pytest.raises(ShortLog):
        embedded(log)


def verified(store: SegmentStore) -> list[Finding]:
    (view,) = take_inventory(Context(store))
    units = plan(Context(store), view, lambda _: True)[1]
    return check(units, lambda _: None, Deadline(SystemClock(), None))[0]


def test_a_repair_keeps_the_whole_frames(log: MemoryStore) -> None:
    path = max(newest_parts(log), key=log.size)
    data = bytearray(log.read(path))
    data[-1] ^= 1
    overwrite(log, path, bytes(data))
    copy, _ = repaired(log, f"row-engine-{next(_numbers)}")
    with embedded(copy) as store:
        assert len(store.map("orders")) == 20
    assert path in parts(copy)


def test_without_pyarrow_a_log_with_parquet_is_refused(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded(memory) as store:
        store.map("orders")["a"] = 1
        store.compact()
    before = {file.path: memory.read(file.path) for file in memory.list("")}
    monkeypatch.setattr(arrow_library, "is_installed", lambda: False)
    with pytest.raises(MissingLibrary, match=r"\.parquet is a Parquet file: .*imap-wal\[archive\]"):
        embedded(memory)
    assert {file.path: memory.read(file.path) for file in memory.list("")} == before
