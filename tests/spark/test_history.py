"""The table `history` has what `imap-wal get --history` has."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import datasource as spark_filters

from imap_wal.context import Context
from imap_wal.entry import DELETED, EXPIRES_AT_MS, ORDER, TIMESTAMP_MS, VALUE, is_clear
from imap_wal.errors import InvalidSetting
from imap_wal.inspect.inventory import take_inventory
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.changes.history import HistoryReader
from pyspark_imap_wal.options import Options
from rewrite_cli.cli import group
from rewrite_cli.commands.reading.get import Search, find
from rewrite_cli.entries.keys import matcher
from storage_backends import open_store
from storage_backends.memory import MemoryStore, forget
from tests.histories import KEYS, MAPS, Cluster, put, steps
from tests.kit.effort import share
from tests.kit.logs import SMALL, append, cluster, node

pytestmark = pytest.mark.spark
_numbers = itertools.count()
ORDER_FIELDS = ("incarnation", "partition_version", "session", "request")


def read(url: str, *filters: Any, **options: str) -> list[dict[str, Any]]:
    chosen = Options.parse({"path": url, "table": "history", **options})
    reader = HistoryReader(chosen, chosen.kinds())
    reader.pushFilters(list(filters))
    return [
        line
        for part in reader.partitions()
        for batch in reader.read(part)
        for line in batch.to_pylist()
    ]


def versions(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Newest first, as the command prints them."""
    found = [
        (
            tuple(line[name] for name in ORDER_FIELDS),
            line["node"],
            line["position"],
            line["value"],
            line["deleted"],
            line["cleared"],
            line["timestamp_ms"],
            line["expires_at_ms"],
        )
        for line in lines
    ]
    return sorted(found, reverse=True, key=lambda each: (each[:2], each[5]))


@settings(
    max_examples=share(40),
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(history=steps)
def test_history_is_that_of_the_command_over_random_histories(
    history: list[tuple[str, int, int, int]],
) -> None:
    name = f"history-{next(_numbers)}"
    played = Cluster(MemoryStore(name))
    try:
        played.play(history)
        (view,) = take_inventory(Context(played.store))
        every = read(f"memory://{name}", buckets="2")
        for of, key in itertools.product(MAPS, KEYS):
            found = find(
                Search(Context(played.store), view, of, matcher((key,))), history=True
            ).keys
            expected = [
                (
                    line.row[ORDER],
                    line.node,
                    None if line.position is None else str(line.position),
                    line.row[VALUE],
                    line.row[DELETED],
                    is_clear(line.row),
                    line.row[TIMESTAMP_MS],
                    0 if is_clear(line.row) else line.row[EXPIRES_AT_MS],
                )
                for each in found
                for line in each.versions
            ]
            filters = [
                spark_filters.EqualTo(("key",), key),
                spark_filters.EqualTo(("map",), of),
            ]
            pushed = versions(read(f"memory://{name}", *filters))
            whole = versions([e for e in every if (e["map"], e["key"]) == (of, key)])
            assert pushed == whole
            if found:  # the command says nothing of a key without an entry that counts
                assert pushed == expected
    finally:
        played.close()
        forget(name)


def test_history_of_a_key_in_spark(spark: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "log")
    log = node(open_store(url))
    for number in range(1, 4):
        append(log, put("a", number, (1, 1, 1, 2 * number), timestamp_ms=1000 * number))
        append(log, put("b", number, (1, 1, 1, 2 * number + 1)))
        log.rotate()
    append(log, put("a", None, (1, 1, 1, 99)))
    table = spark.read.format("imap_wal").option("table", "history").option("decode", "true")
    rows = table.load(url).where("map = 'orders' and key = X'61'").orderBy("request").collect()
    words = ["get", url, "--map", "orders", "hex:61", "--history", "-o", "json"]
    printed = CliRunner().invoke(group, words)
    said = json.loads(printed.stdout)["keys"][0]["versions"]
    assert [row["position"] for row in rows] == [each["position"] for each in said[::-1]]
    assert [row["timestamp_ms"] for row in rows] == [each["timestamp_ms"] for each in said[::-1]]
    assert [row["deleted"] for row in rows] == [False, False, False, True]
    assert {row["known_from"] for row in rows} == {None}
    rewrite(cluster(open_store(url)), LocalEngine(SMALL), skew_ms_max=2**60)
    prune(cluster(open_store(url)))
    rows = table.load(url).where("key = X'62'").collect()
    ((position, known_from),) = [(row["position"], row["known_from"]) for row in rows]
    assert position is None, "the newest, which the snapshot has"
    assert known_from is not None and known_from > said[1]["position"]


@pytest.mark.parametrize("option", ["mode", "as_of", "changes", "starting"])
def test_history_refuses_options_of_other_tables(option: str) -> None:
    with pytest.raises(InvalidSetting, match=f"history takes no option {option}"):
        Options.parse({"path": "/maps", "table": "history", option: "raw"})
