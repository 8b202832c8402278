"""The local engine merges by columns. Its results are those of a merge row by row."""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imap_wal.entry import ORDER_FIELDS, SHARED_SESSIONS
from imap_wal.errors import CorruptLog
from imap_wal.parquet.scratch import Scratch
from imap_wal.rewrite import local_engine, part_writer
from imap_wal.rewrite.columns import merge, sources, winners
from imap_wal.rewrite.columns.newest_keys import KEY_SCHEMA, NewestKeys
from imap_wal.rewrite.columns.winners import RANKED_SCHEMA, RowSorter
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.plan import prepare
from imap_wal.rewrite.run import rewrite
from imap_wal.rules.newer import Contest, contenders
from imap_wal.settings import Settings
from storage_backends import NotFound
from storage_backends.memory import MemoryStore
from tests import histories
from tests.histories import put
from tests.kit import rivals as rivals_kit
from tests.kit.effort import every, share, thorough
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.rewrites import archive
from tests.kit.row_engine import ComparedEngine

_numbers = itertools.count()
SMALL = Settings(preallocate=False, segment_bytes=1 << 20)
TIGHT = Settings(preallocate=False, segment_bytes=1 << 20, restore_memory_bytes=4000)
"""Everything is on scratch, in several ranges."""
NAMES = ["n2", "n1", "n3"]


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are read by columns too, and files have few rows."""
    monkeypatch.setattr(merge, "COLUMN_ROWS", 1)
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 2)


@settings(
    max_examples=share(50),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=histories.steps, tight=st.booleans())
def test_engines_agree_over_random_histories(
    monkeypatch: pytest.MonkeyPatch, history: list[tuple[str, int, int, int]], tight: bool
) -> None:
    """Tombstones, expiry, clears, two nodes, partitions that move, lifetimes, archives, drops."""
    monkeypatch.setattr(histories, "LocalEngine", ComparedEngine)
    memory = TIGHT if tight else SMALL
    histories.play_and_maintain(f"columns-{next(_numbers)}", history, memory)


@settings(
    deadline=None,
    max_examples=share(40),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    history=st.lists(rivals_kit.changes, max_size=25),
    order=st.randoms(use_true_random=False),
    tight=st.booleans(),
)
def test_engines_agree_if_nodes_claim_one_change(
    history: list[Any], order: random.Random, tight: bool
) -> None:
    claims = rivals_kit.as_rows(history)
    winners, rivals = rivals_kit.expected(claims)
    with rivals_kit.logs(claims, order) as store:
        log = cluster(store)
        for _ in range(2):
            report = rewrite(log, ComparedEngine(TIGHT if tight else SMALL), skew_ms_max=2**60)
            assert sum(each.undecided for each in report.maps) == len(rivals)
            rivals_kit.check_readers(log, winners, rivals)
        resolution = Resolution("n2") if tight else Resolution()
        report = rewrite(log, ComparedEngine(SMALL), skew_ms_max=2**60, resolve=resolution)
        assert sum(each.undecided for each in report.maps) == 0


def test_a_conflict_that_fills_a_part_is_counted(memory: MemoryStore) -> None:
    append(node(memory), put("a", None, (1, 1, 1, 1)))
    append(node(memory, "n3"), put("a", "x", (1, 1, 1, 1)))
    report = rewrite(cluster(memory), ComparedEngine(SMALL), skew_ms_max=2**60)
    assert report.maps[0].undecided == 1


@every(11)
@pytest.mark.parametrize("shared", [False, True], ids=["own sessions", "a shared session"])
@pytest.mark.parametrize("top", [2, 2**40, 2**63 - 1])
def test_contenders_are_those_of_rows(top: int, shared: bool, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        rows = rows_of_keys(chance, chance.randrange(1, 30), top)
        for row in rows:  # a log has no own session that is so high
            row["session"] = SHARED_SESSIONS + 7 if shared else row["session"] % SHARED_SESSIONS
        expected = contenders_of(rows)
        table = pa.Table.from_pylist(rows, schema=KEY_SCHEMA)
        assert shown(contenders(table, NAMES)) == expected
        keys = NewestKeys(chance.choice([1, 500, 2000, 10**6]))
        keys.nodes += NAMES
        start = 0
        while start < len(rows):
            stop = start + chance.randrange(1, 6)
            keys.add("m", pa.RecordBatch.from_pylist(rows[start:stop], schema=KEY_SCHEMA))
            start = stop
        ranges = [shown(each) for each in keys.ranges("m")]
        assert [each for some in ranges for each in some] == expected
        keys.close()


def rows_of_keys(chance: random.Random, count: int, top: int) -> list[dict[str, Any]]:
    nodes, names = chance.choice([1, 2, 3]), chance.choice([2, 8])

    def number() -> int:
        return chance.choice([0, 1, top, chance.randint(0, top)])

    return [
        {
            "key": b"k%d" % chance.randrange(names),
            **{name: number() for name in ORDER_FIELDS},
            "node": chance.randrange(nodes),
            "deleted": chance.random() < 0.3,
            "expires_at_ms": 0,
            "late": chance.random() < 0.05,
            "source": 0,
            "row": row,
        }
        for row in range(count)
    ]


def order(row: dict[str, Any]) -> Any:
    return tuple(row[name] for name in ORDER_FIELDS)


def contenders_of(rows: list[dict[str, Any]]) -> list[tuple[bytes, Any, bool]]:
    contest: Contest[dict[str, Any]] = Contest(
        order, lambda row: NAMES[row["node"]], lambda row: row["deleted"], lambda row: ()
    )
    newest: dict[bytes, dict[str, Any]] = {}
    rivals: dict[bytes, list[dict[str, Any]]] = {}
    for row in rows:
        contest.offer(newest, rivals, row["key"], row)
    late = {row["key"] for row in rows if row["late"]}
    return sorted(
        (key, row["row"], key in late)
        for key, winner in newest.items()
        for row in (winner, *rivals.get(key, ()))
    )


def shown(table: Any) -> list[tuple[bytes, Any, bool]]:
    return sorted((row["key"], row["row"], row["late"]) for row in table.to_pylist())


@every(4)
@pytest.mark.parametrize("runs", [2, 3, 128])
@pytest.mark.parametrize("memory_bytes", [1, 3000, 10**6])
def test_rows_are_sorted_in_bounded_memory(
    memory_bytes: int, runs: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winners, "RUNS", runs)
    monkeypatch.setattr(winners, "PAGE_BYTES_MIN", 1)
    chance = random.Random(seed)
    ranks = list(range(200))
    chance.shuffle(ranks)
    sorter = RowSorter(memory_bytes, None)
    for start in range(0, 200, 7):
        some = ranks[start : start + 7]
        columns = [
            pa.array([b"v" * (rank % 50) if field.name == "value" else rank for rank in some])
            if field.name in ("value", "rank")
            else pa.nulls(len(some), field.type)
            for field in RANKED_SCHEMA
        ]
        fields = [field.with_nullable(True) for field in RANKED_SCHEMA]
        arrays = [each.cast(field.type) for each, field in zip(columns, fields, strict=True)]
        sorter.add(pa.RecordBatch.from_arrays(arrays, schema=RANKED_SCHEMA))
    found = [
        (row["rank"], len(row["value"])) for page in sorter.pages() for row in page.to_pylist()
    ]
    sorter.close()
    assert found == [(rank, rank % 50) for rank in range(200)]


def test_of_runs_with_large_rows_one_page_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their number: a page is loaded when its rows are next."""
    monkeypatch.setattr(winners, "RUNS", 100)
    waiting: set[int] = set()
    most = 0

    class Pages(Scratch):
        def _loaded(self, held: Any) -> Any:
            nonlocal most
            page = super()._loaded(held)
            waiting.add(page.column("rank")[0].as_py())
            most = max(most, len(waiting))
            return page

    monkeypatch.setattr(winners, "Scratch", Pages)
    fields = [field.with_nullable(True) for field in RANKED_SCHEMA]
    with closing(RowSorter(1000, None)) as sorter:
        for rank in range(100, 0, -1):
            columns = {"value": bytes(2000), "rank": rank}
            arrays = [pa.array([columns.get(each.name)], each.type) for each in fields]
            sorter.add(pa.RecordBatch.from_arrays(arrays, schema=RANKED_SCHEMA))
        found = []
        for page in sorter.pages():
            found += page.column("rank").to_pylist()
            waiting -= set(found)
    assert found == list(range(1, 101))
    assert most <= 2


def archived(store: MemoryStore, keys: int = 20) -> Any:
    log = node(store)
    for turn in range(2):
        rows = [put(f"k{key:03d}", f"{turn}", (1, 1, 1, turn * keys + key)) for key in range(keys)]
        append(log, *rows)
        archive(store, log)
    return log


class Disturbed(sources.Sources):
    """Something happens to the log after keys were read, and before values are."""

    between: Any = None

    def rows(self, source: int, rows: Any) -> Any:
        if self.between is not None:
            Disturbed.between, between = None, self.between
            between()
        return super().rows(source, rows)


def test_archives_may_be_absorbed_between_keys_and_values(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive run absorbs small archives beside a rewrite, which must not have to begin
    again."""
    log = archived(memory)
    monkeypatch.setattr(merge, "Sources", Disturbed)
    gone = []

    def absorb() -> None:
        for each in log.manifests.read()[1].archives:
            memory.delete(each.path)
            gone.append(each.path)

    Disturbed.between = staticmethod(absorb)
    job_log = cluster(memory)
    result = local_engine.LocalEngine(SMALL).run(prepare(job_log), job_log)
    assert len(gone) == 2 and sum(part.live for part in result.maps[0].parts) == 20


def test_a_large_archive_that_disappears_begins_the_rewrite_again(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = archived(memory)
    monkeypatch.setattr(merge, "Sources", Disturbed)
    monkeypatch.setattr(sources, "is_absorbable", lambda *_: False)
    moved = []

    def away() -> None:
        for each in log.manifests.read()[1].archives:
            moved.append((each.path, memory.read(each.path)))
            memory.delete(each.path)

    class Back(local_engine.LocalEngine):
        def run(self, plan: Any, log: Any) -> Any:
            try:
                return super().run(plan, log)
            except NotFound:
                while moved:
                    memory.create(*moved.pop())
                raise

    Disturbed.between = staticmethod(away)
    report = rewrite(cluster(memory), Back(SMALL))
    assert report.maps[0].live == 20 and not moved and Disturbed.between is None


def test_damage_in_a_value_is_found(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file changes after its checksum was compared: each page has one too."""
    log = archived(memory)
    monkeypatch.setattr(merge, "Sources", Disturbed)
    monkeypatch.setattr(sources, "is_absorbable", lambda *_: False)

    def damage() -> None:
        for each in log.manifests.read()[1].archives:
            data = bytearray(memory.read(each.path))
            data[: len(data) // 3] = bytes(len(data) // 3)
            memory.delete(each.path)
            memory.create(each.path, bytes(data))

    Disturbed.between = staticmethod(damage)
    with pytest.raises(CorruptLog, match="cannot be read"):
        rewrite(cluster(memory), local_engine.LocalEngine(SMALL))


@thorough
def test_many_maps_and_keys_are_split_into_ranges(memory: MemoryStore, seed: int) -> None:
    chance = random.Random(seed)
    log = node(memory)
    expected: dict[str, str] = {}
    request = itertools.count(1)
    for turn in range(4):
        rows = []
        for _ in range(300):
            key, value = f"k{chance.randrange(500)}", str(chance.random())
            name = chance.choice(["orders", "items", "../a b"])
            rows.append(put(key, value, (1, 1, 1, next(request)), name))
            if name == "orders":
                expected[key] = value
        append(log, *rows, frames=3)
        if turn % 2:
            archive(memory, log)
    rewrite(cluster(memory), ComparedEngine(TIGHT))
    rewrite(cluster(memory), ComparedEngine(SMALL))
    assert values(view(memory)) == expected
