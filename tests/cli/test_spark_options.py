"""Properties of Spark on the command line and in the TOML file, and the package for its workers."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from imap_wal.errors import InvalidSetting
from imap_wal.rewrite.report import RewriteReport
from pyspark_imap_wal.package import distributions, write_package
from rewrite_cli.commands.upkeep import rewrite as rewrite_command
from rewrite_cli.commands.upkeep.rewrite import _Rewritten, _show
from tests.cli.conftest import Run
from tests.kit.effort import thorough


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The properties that the command passes on; nothing is rewritten."""
    found: dict[str, str] = {}

    def note(selection: Any, engines: Any, **more: Any) -> list[Any]:
        found.update(engines.properties)
        return []

    monkeypatch.setattr(rewrite_command, "rewrite_all", note)
    return found


def test_flags_override_single_properties_of_the_file(
    run: Run, given: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "imap-wal.toml").write_text(
        "[rewrite]\nengine = 'spark'\n[spark]\nmaster = 'spark://a:7077'\nexecutor.cores = 2\n"
        "speculation = true\n'spark.speculation.interval' = '1s'\n[spark.executorEnv]\nX = 'a=b'\n"
    )
    ended = run("rewrite", tmp_path, "--spark-conf", "spark.master=local[2]")
    assert ended.code == 0, ended.err
    assert given == {
        "spark.master": "local[2]",
        "spark.executor.cores": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "1s",
        "spark.executorEnv.X": "a=b",
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "spark", "--spark-conf", "spark.master"], "there is no ="),
        (["--engine", "spark", "--spark-conf", "fs.s3a.key=hidden-value"], "'fs.s3a.key'"),
        (["--spark-conf", "spark.hadoop.fs.s3a.key=hidden-value"], "--engine spark"),
    ],
)
def test_a_wrong_property_is_named_without_its_value(
    run: Run, tmp_path: Path, words: list[str], said: str
) -> None:
    ended = run("rewrite", tmp_path, *words)
    assert (ended.code, said in ended.err) == (2, True), ended.err
    assert "hidden-value" not in ended.err


def test_a_property_is_a_single_value(run: Run, tmp_path: Path) -> None:
    (tmp_path / "imap-wal.toml").write_text("[spark]\nexecutor.cores = [1]\n")
    ended = run("rewrite", tmp_path, "--engine", "spark")
    assert ended.code == 2
    assert "imap-wal.toml: [spark] executor.cores is a list" in ended.err


@thorough
def test_a_python_without_imap_wal_runs_it_from_the_package(run: Run, tmp_path: Path) -> None:
    """The libraries with machine code too; pyarrow is not in it."""
    ended = run("spark", "package", tmp_path / "w.zip", "-o", "json")
    assert ended.code == 0, ended.err
    assert [each.split()[0] for each in ended.json["libraries"]] == [
        "google-crc32c", "msgpack", "msgspec",
    ]  # fmt: skip
    assert ended.json["properties"] == {
        "spark.archives": f"{tmp_path}/w.zip#imap-wal",
        "spark.executorEnv.PYTHONPATH": "imap-wal",
    }
    with zipfile.ZipFile(tmp_path / "w.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
        assert not [name for name in archive.namelist() if "pyarrow" in name or "click" in name]
    code = (
        "import google_crc32c, imap_wal, imap_wal.read.cluster; print(imap_wal.__file__); "
        "print(google_crc32c.implementation)"
    )
    there = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "unpacked")},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert there.stdout.split() == [str(tmp_path / "unpacked/imap_wal/__init__.py"), "c"]


def test_a_package_is_reproducible_and_written_whole(run: Run, tmp_path: Path) -> None:
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    write_package(first)
    write_package(second)
    assert first.read_bytes() == second.read_bytes()
    for words, code, said in (
        ([tmp_path / "a.tar"], 2, ".zip"),
        ([tmp_path / "none" / "a.zip"], 1, "folder that exists"),
        ([first, "--extra", "s4"], 2, "no extra 's4'"),
    ):
        ended = run("spark", "package", *words)
        assert (ended.code, said in ended.err) == (code, True), ended.err
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]


def test_an_extra_brings_what_its_libraries_require() -> None:
    found = {each.name.lower() for each in distributions(["s3"])}
    assert {"s3fs", "aiobotocore", "botocore", "msgpack"} <= found
    assert not found & {"imap-wal", "pyspark", "click"}
    with pytest.raises(InvalidSetting, match="no extra"):
        distributions(["none"])


@pytest.mark.parametrize(
    ("engine", "records", "is_told"),
    [("spark", 1_001, True), ("spark", 1_000_000, False), ("local", 1_001, False)],
)
def test_a_small_rewrite_on_spark_names_the_quicker_engine(
    engine: str, records: int, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report = RewriteReport("ns", "c", engine, (), {}, {}, records, 2.0, 10**8, dry_run=False)
    _show(_Rewritten(report, (), ()), dry_run=False)
    assert ("`--engine local`" in capsys.readouterr().err) is is_told
