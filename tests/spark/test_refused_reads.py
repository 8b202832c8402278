"""Reads of the table that name what does not exist: an error, because no rows would look like an
empty map. And reads that rightly have no rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo

from imap_wal.clock import SystemClock
from imap_wal.context import open_context
from imap_wal.errors import InvalidSetting
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.batch import ImapWalReader
from pyspark_imap_wal.data_source import LATEST, Options
from tests.kit.effort import thorough
from tests.kit.logs import SMALL
from tests.kit.spark_reads import read

pytestmark = pytest.mark.spark
READS = [{"mode": "raw"}, {"mode": "latest"}, {"changes": "images"}, {"table": "history"}]


@pytest.mark.parametrize("how", [*READS, {"table": "files"}, {"table": "nodes"}], ids=str)
def test_a_path_without_a_log_is_refused(tmp_path: Path, how: dict[str, str]) -> None:
    """No rows would look like an empty log."""
    with pytest.raises(Exception, match=f"there is no log under {tmp_path}: check the path"):
        count(str(tmp_path), **how)


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """A log with the maps orders and sessions, of the node n1."""
    import imap_wal

    with imap_wal.open(str(tmp_path), node="n1", preallocate=False) as store:
        store.map("orders")["k"] = 1
        store.map("sessions")["k"] = 1
    return str(tmp_path)


def soon() -> str:
    return str(SystemClock().now_ms() + 60_000)


def count(url: str, **options: str) -> int:
    return len(read(url, **options))


@pytest.mark.parametrize("how", [*READS, {"table": "files"}], ids=str)
def test_a_map_that_no_log_has_is_refused(orders: str, how: dict[str, str]) -> None:
    """Also beside a map that exists. The command line refuses it with the same text."""
    for names in ("order", "order,orders"):
        with pytest.raises(Exception, match="no map 'order'; found: orders, sessions; did you mea"):
            count(orders, map=names, **how)
    assert count(orders, map="orders", **how) == (how.get("table") != "files")


@pytest.mark.parametrize(
    ("below", "up"),
    [
        ("default", "the folder of one namespace; pass the root, one level up"),
        ("default/embedded", "the folder of one cluster; pass the root, two levels up"),
        ("default/embedded/nodes/n1", "the folder of one node; pass the root, four levels up"),
    ],
)
def test_a_path_below_the_root_names_the_root(orders: str, below: str, up: str) -> None:
    """A manifest of a node there is no damaged one of a cluster."""
    with pytest.raises(Exception, match=up):
        count(f"{orders}/{below}")


def test_unknown_clusters_and_nodes_are_refused(orders: str) -> None:
    with pytest.raises(Exception, match=r"select no log under .*; found: default/embedded"):
        count(orders, cluster="embeded")
    for table in ("entries", "nodes"):
        with pytest.raises(Exception, match=r"there is no node 'n2' under .*; found: n1"):
            count(orders, table=table, node="n1,n2")
    assert count(orders, cluster="embedded", node="n1") == 2


@pytest.mark.parametrize("mode", ["raw", "latest"])
def test_an_as_of_before_all_entries_is_refused(orders: str, mode: str) -> None:
    with pytest.raises(Exception, match=r"no entry of 1970-01-01T00:00:01.000Z or before"):
        count(orders, mode=mode, as_of="1000")
    assert count(orders, mode=mode, as_of=soon()) == 2


@pytest.mark.parametrize("mode", ["raw", "latest"])
@pytest.mark.parametrize(
    ("as_of", "text"),
    [
        ("", "as_of is ''; it takes 2026-11-21T10:00"),
        ("{}", "no node is named"),
        ("2100-01-01", r"2100-01-01T00:00:00.000Z is in the future: .* machine says 20"),
        ("0", r"no entry of 1970-01-01T00:00:00.000Z or before; the first one is of 20"),
        ('{"n2": "1.1.0.0"}', r"there is no node 'n2' under .*; found: n1"),
    ],
)
def test_an_as_of_that_can_be_no_moment_is_refused(
    orders: str, mode: str, as_of: str, text: str
) -> None:
    with pytest.raises(Exception, match=text):
        count(orders, mode=mode, as_of=as_of)


def test_an_as_of_before_a_younger_cluster_is_allowed(orders: str) -> None:
    import imap_wal

    with imap_wal.open(orders, cluster="young", clock=SystemClock(3_600_000)) as store:
        store.map("orders")["k"] = 1
    assert count(orders, mode="latest", as_of=soon()) == 2
    with pytest.raises(Exception, match=r"there is no entry of .* or before"):
        count(orders, mode="latest", as_of=soon(), cluster="young")


def test_a_filtered_read_needs_no_other_cluster(orders: str) -> None:
    """The log of a node of the other one is missing."""
    import imap_wal

    with imap_wal.open(orders, cluster="another", node="n1") as store:
        store.map("orders")["k"] = 1
    shutil.rmtree(Path(orders) / "default" / "another" / "nodes" / "n1")

    def tasks(as_of: str) -> list[Any]:
        reader = ImapWalReader(Options.parse({"path": orders, "as_of": as_of}))
        list(reader.pushFilters([EqualTo(("cluster",), "embedded")]))
        return reader.partitions()

    assert tasks(soon())
    with pytest.raises(InvalidSetting, match="there is no entry of 1970-01-01T00:00:01"):
        tasks("1000")


@thorough
@pytest.mark.parametrize("pushed", ["true", "false"])
def test_a_filter_that_no_row_passes_gives_no_rows(spark: Any, orders: str, pushed: str) -> None:
    """A filter is no option: it is about rows."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, pushed)
    try:
        raw = spark.read.format("imap_wal").load(orders)
        for condition in ("map = 'order'", "cluster = 'none'", "node = 'none'"):
            assert raw.where(condition).count() == 0
        then = spark.read.format("imap_wal").option("as_of", "1000").load(orders)
        with pytest.raises(Exception, match=r"there is no entry of .* or before"):
            then.where("map = 'orders' and cluster = 'none'").count()
    finally:
        spark.conf.set(name, before)


def test_empty_logs_and_maps_give_no_rows(tmp_path: Path) -> None:
    """A log without entries; a map whose entries were deleted, rewritten and pruned; and one that
    was dropped. These names exist."""
    import imap_wal

    with imap_wal.open(str(tmp_path / "empty"), node="n1", preallocate=False):
        pass
    for how in READS:
        assert count(str(tmp_path / "empty"), map="orders", **how) == 0
    assert count(str(tmp_path / "empty"), mode="latest", as_of=soon()) == 0
    url = str(tmp_path / "log")
    with imap_wal.open(url, node="n1", preallocate=False) as store:
        for name in ("orders", "dropped"):
            store.map(name)["k"] = 1
            del store.map(name)["k"]
    assert count(url, mode="latest", map="orders") == 0
    log = ClusterLog(open_context(url), "default", "embedded")
    rewrite(log, LocalEngine(SMALL), skew_ms_max=2**60)
    drop_map(log, "dropped")
    prune(log)
    for mode in ("raw", "latest"):
        assert count(url, mode=mode, map="dropped") == 0
        assert count(url, mode=mode, map="orders") == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "load"),
        ({"path": "x", "mode": "newest"}, "'newest'"),
        ({"path": "x", "colour": "red"}, "colour"),
        ({"path": "x", "buckets": "0"}, "'0'"),
        ({"path": "x", "decode": "yes"}, "'yes'"),
        ({"path": "x", "mode": LATEST, "node": "n1"}, "node"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], word: str) -> None:
    with pytest.raises(InvalidSetting, match=word):
        Options.parse(options)
