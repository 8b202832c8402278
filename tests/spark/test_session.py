"""The user's settings of Spark count. A process of its own for each: it can start one JVM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imap_wal.errors import InvalidSetting
from pyspark_imap_wal.session import HIDDEN, configuration
from tests.kit.effort import thorough
from tests.kit.spark_cluster import driver_environment

pytestmark = pytest.mark.spark

SECRETS = (
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.s3a.encryption.key",
    "spark.hadoop.fs.azure.account.key.maps.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.fixed.token.maps.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.container.maps.blob.core.windows.net",
    "spark.hadoop.fs.gs.auth.service.account.private.key",
    "spark.ssl.keyPassword",
)

PROGRAM = """
import json, os, sys
from pathlib import Path
from pyspark import SparkContext
from pyspark_imap_wal.session import configuration
conf = configuration(json.loads(sys.argv[1]))
lines = [p.read_bytes().decode(errors="replace") for p in Path("/proc").glob("[0-9]*/cmdline")
         if p.exists() and str(os.getpid()) != p.parts[2]]
seen = dict(SparkContext._jvm.System.getenv())
print(json.dumps({"tables": seen.get("PYSPARK_DRIVER_PYTHON") or seen.get("PYSPARK_PYTHON"),
                  "conf": dict(conf.getAll()), "python": os.environ.get("PYSPARK_PYTHON"),
                  "shown": any("never-shown" in each for each in lines)}))
"""


def started(properties: dict[str, str], **environment: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(properties)],
        env={**driver_environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "pandas" not in ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@thorough
@pytest.mark.parametrize(
    ("variable", "path", "reads"),
    [
        ("PYSPARK_PYTHON", sys.executable, sys.executable),
        ("PYSPARK_DRIVER_PYTHON", "/opt/python", "/opt/python"),
        ("PYSPARK_PYTHON", "/opt/python", "python3"),
    ],
)
def test_a_named_interpreter_reads_tables(variable: str, path: str, reads: str) -> None:
    """All machines may have the path. Another one than this need not have imap-wal here, and reads
    are planned with it."""
    assert started({}, **{variable: path})["tables"] == reads


@thorough
def test_without_any_configuration_a_killed_worker_is_replaced() -> None:
    found = started({})
    assert found["conf"]["spark.master"] == "local[*,4]"
    assert found["conf"]["spark.app.name"] == "imap-wal"
    assert found["conf"]["spark.ui.enabled"] == "false"
    assert found["conf"]["spark.ui.showConsoleProgress"] == "false"
    assert found["python"] == sys.executable


@thorough
def test_what_spark_submit_was_given_holds(tmp_path: Path) -> None:
    """A file of defaults, then the arguments of spark-submit, then our own properties."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master spark://a:1\nspark.executor.memory 3g\nspark.log.level INFO\n"
    )
    given = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "--master spark://b:1 --name nightly --executor-cores 3 "
        "--conf spark.ui.showConsoleProgress=true pyspark-shell",
    }
    found = started({}, **given)
    assert found["python"] is None, "that of this machine may not be there"
    assert found["conf"]["spark.master"] == "spark://b:1"
    assert found["conf"]["spark.app.name"] == "nightly"
    assert found["conf"]["spark.executor.memory"] == "3g"
    assert found["conf"]["spark.executor.cores"] == "3"
    assert found["conf"]["spark.log.level"] == "INFO"
    assert found["conf"]["spark.ui.showConsoleProgress"] == "true"
    assert "spark.ui.enabled" not in found["conf"]
    found = started({"spark.master": "local[3]", "spark.pyspark.python": "/p"}, **given)
    assert found["conf"]["spark.master"] == "local[3]"
    assert found["python"] == "/p"


@thorough
def test_secret_properties_are_not_on_a_command_line() -> None:
    """Spark does not show them either."""
    given = dict.fromkeys(SECRETS, "never-shown")
    found = started(given)
    assert found["conf"].items() >= given.items()
    assert not found["shown"]
    assert found["conf"]["spark.redaction.regex"] == HIDDEN.pattern


@pytest.mark.parametrize("name", SECRETS)
def test_the_name_of_a_secret_is_known(name: str) -> None:
    assert HIDDEN.search(name)


@pytest.mark.parametrize(
    "name",
    [
        "spark.executor.memory",
        "spark.ssl.keyStore",
        "spark.kubernetes.container.image",
        "spark.jars",
    ],
)
def test_other_properties_are_shown(name: str) -> None:
    assert not HIDDEN.search(name)


def test_properties_of_others_and_spark_connect_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidSetting, match=r"'fs\.s3a'"):
        configuration({"fs.s3a": "x"})
    with pytest.raises(InvalidSetting, match="Spark Connect"):
        configuration({"spark.remote": "sc://x"})
    monkeypatch.setenv("SPARK_REMOTE", "sc://x")
    with pytest.raises(InvalidSetting, match="Spark Connect"):
        configuration({})
