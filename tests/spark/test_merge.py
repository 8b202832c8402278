"""The program of docs/how-to/merge.md keeps a table equal to a map."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import imap_wal
from imap_wal.embedded.durable_map import DurableMap
from tests.cluster.processes import ROOT
from tests.kit import releases
from tests.kit.effort import thorough
from tests.kit.pages import titled

pytestmark = pytest.mark.spark
PAGE = ROOT / "docs/how-to/merge.md"
DRIVER = Path(__file__).parent / "drivers" / "merge.py"
DEATHS = ((0, "after"), (1, "within"), (2, "before"), (3, "within"), (4, "after"))


def rows_of(orders: DurableMap[Any, Any]) -> list[list[Any]]:
    """What the table should have."""
    return sorted(
        [imap_wal.key_bytes(key).hex(), value["id"], value["status"], None]
        if isinstance(value["id"], int)
        else [imap_wal.key_bytes(key).hex(), None, None, json.dumps(value)]
        for key, value in orders.items()
    )


def test_the_last_changes_of_a_batch_are_the_map(spark: Any, tmp_path: Path) -> None:
    """What the program merges, without a table."""
    program = ModuleType("merge")
    exec(titled(PAGE)["merge.py"], program.__dict__)
    with imap_wal.open(tmp_path / "log") as store:
        orders = store.map("orders")
        orders.update({f"o{at}": {"id": at, "status": "new"} for at in range(9)})
        orders.update({f"o{at}": {"id": at, "status": "paid"} for at in range(3)})
        del orders["o1"], orders["o4"]
        orders["o4"] = {"id": 4, "status": "again"}
        orders["odd"] = {"id": "text"}
        expected = rows_of(orders)
    images = spark.read.format("imap_wal").option("changes", "images").option("map", "orders")
    read = images.option("schema", "id bigint, status string").load(str(tmp_path / "log"))
    last = program.last_changes(read).collect()
    deleted = [row for row in last if row["_change_type"] == "delete"]
    assert [row["key"] for row in deleted] == [imap_wal.key_bytes("o1")]
    left = [row for row in last if row["_change_type"] != "delete"]
    found = [[row["key"].hex(), row["id"], row["status"], row["_rescued"]] for row in left]
    assert sorted(found) == expected


class Lake:
    """A table of one kind, and what its driver needs."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder, self.log = folder / "table", folder / "log"
        self.folder.mkdir()
        for name, text in titled(PAGE).items():
            (self.folder / name).write_text(text)
        spark = releases.spark("4.0")
        path = os.pathsep.join([str(spark), str(ROOT)])
        self._environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
        self._environment["SPARK_HOME"] = str(spark / "pyspark")
        self._words = [releases.lake_jars(), kind, str(self.log), str(self.folder)]

    def run(self, *death: object) -> None:
        """Run the driver until it kills itself; without `death` until it has read everything."""
        ended = subprocess.run(
            [sys.executable, str(DRIVER), *self._words, *map(str, death)],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == (-9 if death else 0), ended.stderr[-4000:]

    def rows(self) -> list[list[Any]]:
        return sorted(json.loads((self.folder / "table.json").read_text()))


@contextmanager
def changing(orders: DurableMap[Any, Any]) -> Iterator[None]:
    """Changes of all kinds, all the time."""
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count(1):
            keys = {f"o{number * at % 97}" for at in range(1, 9)}
            orders.update({key: {"id": number, "status": f"s{number}"} for key in keys})
            orders.pop(f"o{number % 89}", None)
            if number % 5 == 0:
                orders["odd"] = {"id": f"text {number}"}
            if number % 300 == 0:
                orders.clear()
            if stop.wait(0.05):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_driver_killed_five_times_merges_the_map_exactly(kind: str, tmp_path: Path) -> None:
    """With the jars of Delta and Iceberg, on Spark 4.0. It dies before, within and after merges,
    beside a store that changes the map, rewrites and prunes all the time."""
    lake = Lake(kind, tmp_path)
    with imap_wal.open(
        lake.log, durability="os", auto_rewrite_percentage=1, auto_rewrite_min_bytes=32 * 1024
    ) as store:
        orders = store.map("orders")
        with changing(orders):
            for death in DEATHS:
                lake.run(*death)
        lake.run()
        assert lake.rows() == rows_of(orders)
        assert len(orders) > 10
        compacted = store.statistics.compaction
        assert compacted.runs > len(DEATHS) and compacted.failures == 0
