"""Spark on an encrypted log: the workers read the keys themselves, from the named source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.clock import SystemClock
from imap_wal.context import open_context
from imap_wal.parquet.file import written_otherwise
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.batch import ImapWalReader
from pyspark_imap_wal.options import Options
from pyspark_imap_wal.rewrite_engine import SparkEngine
from storage_backends import open_store
from storage_backends.location import Location
from tests.encrypted import key_file, keyed
from tests.kit.effort import every
from tests.kit.encrypted_maps import SECRET, content, entries

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> str:
    found = str(tmp_path / "root")
    with imap_wal.open(found, encryption_keys=key_file(tmp_path, "a")) as store:
        store.map("orders").update({str(number): SECRET for number in range(30)})
        store.archive()
        store.map("orders").update({str(number): SECRET + "2" for number in range(20, 50)})
    return found


@every(2)
@pytest.mark.parametrize("mode", ["raw", "latest"])
def test_the_data_source_reads_with_the_keys(
    spark: Any, tmp_path: Path, place: str, mode: str
) -> None:
    def read(**options: str) -> int:
        reader = spark.read.format("imap_wal").option("mode", mode)
        for name, value in options.items():
            reader = reader.option(name, value)
        return int(reader.load(place).count())

    assert read(encryption_keys=key_file(tmp_path, "a")) == (60 if mode == "raw" else 50)
    for options, said in (
        ({}, "no keys are given"),
        ({"encryption_keys": key_file(tmp_path, "b")}, "the keys given are b"),
    ):
        with pytest.raises(Exception, match=said):
            read(**options)


def test_the_keys_are_read_from_the_workers_variable_too(
    spark: Any, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that was named for the root wins over it."""
    from pyspark_imap_wal.data_source import known

    monkeypatch.setenv("IMAP_WAL_ENCRYPTION_KEYS", "env:K")
    assert known(place).encryption_keys == "env:K"
    assert known(Location(place, encryption_keys="env:L")).encryption_keys == "env:L"


@pytest.mark.parametrize("what", ["map", "raw", "latest"])
def test_the_driver_needs_no_keys(place: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It then does not know whether the map exists, and when the log began, and where the keys of
    the archives can be cut. The tasks need keys."""
    monkeypatch.setattr("pyspark_imap_wal.latest.ROW_BYTES", 1 << 20)  # more than the segment has
    as_of = {
        "mode": what,
        "as_of": str(SystemClock().now_ms() + 60_000),
        "task_bytes": "1",
    }
    options = {"map": "sessions"} if what == "map" else as_of
    assert ImapWalReader(Options.parse({"path": place, **options})).partitions()


def test_the_rewrite_on_spark_encrypts_with_the_key_that_writes(
    spark: Any, tmp_path: Path, place: str
) -> None:
    both = key_file(tmp_path, "b", "a")
    context = open_context(place, keys=both)
    report = rewrite(
        ClusterLog(context, "default", "embedded"), SparkEngine(spark), skew_ms_max=2**60
    )
    assert report.maps
    parts = [path for path in content(place) if "/snapshot/" in path]
    assert parts and not any(
        written_otherwise(keyed(open_store(place), "b", "a"), path) for path in parts
    )
    assert not any(SECRET.encode() in data for data in content(place).values())
    assert entries(place, both) == 50


def test_sparks_own_reader_says_that_it_has_no_key(spark: Any, place: str) -> None:
    """It takes keys from a key service in Java only; `format("imap_wal")` reads such files."""
    (path,) = [path for path in content(place) if path.endswith(".parquet")]
    with pytest.raises(Exception, match=r"(?i)encrypt|crypto"):
        spark.read.parquet(f"{place}/{path}").count()
