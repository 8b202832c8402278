"""The releases of Spark before 4.2, which pyproject.toml allows: what they cannot do is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import imap_wal
from imap_wal.errors import InvalidSetting
from pyspark_imap_wal import stream
from pyspark_imap_wal.options import Options
from tests.cluster.processes import ROOT
from tests.kit import releases
from tests.kit.effort import thorough

DRIVER = Path(__file__).parent / "drivers" / "available_now.py"


def reader(**options: str) -> stream.ImapWalStreamReader:
    return stream.ImapWalStreamReader(Options.parse({"path": "memory://older", **options}), {})


def test_older_spark_is_refused_what_it_does_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "OLD_SPARK", "4.1.2")
    with pytest.raises(InvalidSetting, match=r"Spark 4\.1\.2 ends a query .*availableNow"):
        reader()
    for name in ("rows_per_batch", "bytes_per_batch"):
        with pytest.raises(InvalidSetting, match=rf"{name} needs Spark 4\.2"):
            reader(available_now="unused", **{name: "100"})
    for said in ("unused", "wrapped"):
        reader(available_now=said)


def test_newer_spark_needs_no_statement_about_its_trigger() -> None:
    assert stream.OLD_SPARK == ""
    reader(rows_per_batch="100")
    with pytest.raises(InvalidSetting, match="available_now is 'yes'; it takes unused or wrapped"):
        reader(available_now="yes")


def test_a_too_old_pyspark_is_named_with_the_needed_one(tmp_path: Path) -> None:
    """It has no data sources in Python, and is installed."""
    (tmp_path / "pyspark" / "sql").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.1'\n")
    (tmp_path / "pyspark" / "sql" / "__init__.py").touch()
    found = tmp_path / "pyspark-3.5.1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 3.5.1\n")
    done = subprocess.run(
        [sys.executable, "-c", "import pyspark_imap_wal"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = "the library pyspark 3.5.1 is another release than imap-wal needs (pyspark>=4.0)"
    assert expected in done.stderr
    assert "not installed" not in done.stderr


@pytest.fixture(params=["4.0", "4.1"])
def older(request: pytest.FixtureRequest) -> Path:
    """A folder with that release; fetched once."""
    return releases.spark(request.param)


class Query:
    """The driver on an older Spark, with one checkpoint."""

    def __init__(self, spark: Path, folder: Path) -> None:
        self.url, self._spark, self._folder = str(folder / "log"), spark, folder

    def run(self, option: str, *, wrapper: bool = True, fatal: int = -1) -> str:
        """What the driver wrote on stderr; "" if it was successful."""
        out, checkpoint = str(self._folder / "out"), str(self._folder / "checkpoint")
        arguments = [self.url, out, checkpoint, option, str(wrapper).lower(), str(fatal)]
        environment = {**os.environ, "PYTHONPATH": f"{self._spark}{os.pathsep}{ROOT}"}
        environment["PYSPARK_PYTHON"] = sys.executable
        environment.pop("SPARK_HOME", None)
        done = subprocess.run(
            [sys.executable, str(DRIVER), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        return done.stderr or "failed" if done.returncode else ""

    def put(self, first: int) -> None:
        with imap_wal.open(self.url) as store:
            store.map("m").update({str(number): number for number in range(first, first + 100)})

    def rows(self) -> int:
        return sum(pq.read_table(file).num_rows for file in self._folder.glob("out/*/*.parquet"))


@pytest.mark.timeout(900)
@thorough
def test_a_query_on_older_spark_reads_everything_after_a_crash(older: Path, tmp_path: Path) -> None:
    """With the trigger availableNow and the wrapper that the error names. Without the option, the
    query is refused at its start."""
    query = Query(older, tmp_path)
    query.put(0)
    assert "availableNow" in query.run("")
    assert query.run("wrapped") == ""
    assert query.rows() == 100
    query.put(100)
    assert query.run("wrapped", fatal=1)  # the batch is planned, and not written
    query.put(200)
    assert query.run("wrapped") == ""
    assert query.rows() == 300


@thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("older", ["4.1"], indirect=True)
def test_older_spark_alone_ends_too_early_after_a_crash(older: Path, tmp_path: Path) -> None:
    """Why it is refused. If this fails, a release does it right, and need not be refused."""
    query = Query(older, tmp_path)
    query.put(0)
    assert query.run("unused", wrapper=False) == ""
    query.put(100)
    assert query.run("unused", wrapper=False, fatal=1)
    query.put(200)
    assert query.run("unused", wrapper=False) == ""
    assert query.rows() == 200
