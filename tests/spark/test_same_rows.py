"""The local engine, Spark, DuckDB and a dict find the same entries, row by row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from imap_wal.entry import DELETED, EXPIRES_AT_MS, KEY, MAP, VALUE, Row
from imap_wal.parquet import archive_rows
from imap_wal.rewrite import part_writer, sorted_runs
from imap_wal.rewrite.columns import merge
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import Engine, prepare
from imap_wal.rewrite.publish import discard
from imap_wal.rewrite.sorted_runs import Sizes
from pyspark_imap_wal.rewrite_engine import SparkEngine
from storage_backends import open_store
from tests.histories import KEYS, MAPS, NODES, Cluster
from tests.kit.effort import share
from tests.kit.logs import SMALL, parquet_rows

pytestmark = pytest.mark.spark

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
FILES = "read_parquet('…/nodes/*/archive/orders/*.parquet')"
NOW = "epoch_ms(now())"
SPLIT = Sizes(range_bytes=1, ranges_max=2**60, group_rows=2)
"""A range of keys for each row group, and archives that are read as runs."""
KINDS = (
    "nothing",
    *("put",) * 6,
    *("delete",) * 3,
    *("ttl",) * 2,
    "clear",
    *("move",) * 2,
    "rotate",
    *("archive",) * 3,
    "older_archives",
    "rewrite",
    "restart",
    "crash",
    "lifetime",
    "wait",
)
"""Steps after which archives alone, without the rules of manifests, have the state of the maps: no
change is late, and nothing is removed."""

histories = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 1),
        st.sampled_from((0, 0, 1)),
        st.integers(0, len(KEYS) - 1),
    ),
    min_size=20,
    max_size=80,
)
Found = dict[tuple[str, bytes], bytes]


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small archives are runs too, with few rows in a row group, and parts have few rows."""
    monkeypatch.setattr(merge, "COLUMN_ROWS", 1)
    monkeypatch.setattr(sorted_runs, "is_absorbable", lambda *_: False)
    monkeypatch.setattr(archive_rows, "GROUP_ROWS", 2)
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 2)


def by_engine(played: Cluster, engine: Engine) -> Found:
    """The live rows of the snapshots that a rewrite would publish."""
    log, now = played.log, played.clock.now_ms()
    plan = prepare(log)
    try:
        rows: list[Row] = []
        for item in engine.run(plan, log).maps:
            former = plan.state.manifest.snapshots.get(item.map)
            paths: Iterable[str] = [part.path for part in item.parts]
            if item.unchanged and former is not None:
                paths = former.paths
            rows += [row for path in paths for row, _ in parquet_rows(log.store, path)]
    finally:
        discard(log, plan)
    live = [row for row in rows if not row[DELETED] and not 0 < row[EXPIRES_AT_MS] <= now]
    found = {(row[MAP], row[KEY]): row[VALUE] or b"" for row in live}
    assert len(found) == len(live), "each key once"
    return found


def by_duckdb(played: Cluster) -> Found:
    """What the query of docs/format.md finds in the archives."""
    (query,) = re.findall(
        r"^```sql\n(.*?)^```$", FORMAT.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert FILES in query and NOW in query
    return {
        (name, bytes(key)): bytes(value)
        for name in MAPS
        if (files := list(archives(played, name)))
        for key, value in duckdb.execute(
            query.replace(FILES, f"read_parquet({files!r})").replace(
                NOW, str(played.clock.now_ms())
            )
        ).fetchall()
    }


def archives(played: Cluster, name: str) -> Iterator[str]:
    root = played.store.url.removeprefix("file://")
    for node in played.log.state().nodes.values():
        for archive in node.manifest.archives:
            if archive.map == name:
                yield f"{root}/{archive.path}"


@settings(
    max_examples=share(5),
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=histories)
def test_local_spark_duckdb_and_a_dict_agree_over_random_histories(
    spark: Any, tmp_path: Path, history: list[tuple[str, int, int, int]]
) -> None:
    """Two nodes, tombstones, times to live, clears, partitions that move, archives in both orders,
    former snapshots, runs of few rows."""
    number = len(list(tmp_path.iterdir()))
    played = Cluster(open_store(str(tmp_path / f"log-{number}")), skew_ms_max=2**60)
    try:
        played.play(history)
        for node in NODES:
            played.archive(node)
        expected = {place: row[VALUE] for place, row in played.expected().items()}
        assert by_duckdb(played) == expected, "DuckDB"
        assert by_engine(played, LocalEngine(SMALL)) == expected, "local"
        assert by_engine(played, SparkEngine(spark, sizes=SPLIT)) == expected, "Spark"
    finally:
        played.close()
