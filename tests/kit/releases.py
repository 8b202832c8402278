"""Releases that only some tests need, in `build/`; fetched once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cluster.processes import ROOT
from tests.storage.services import need

BUILD = ROOT / "build"
LAKEHOUSE = BUILD / "lakehouse"
JARS = (
    "io.delta:delta-spark_2.13:4.0.0",
    "io.delta:delta-storage:4.0.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
"""Delta and Iceberg for Spark 4.0."""


def spark(version: str) -> Path:
    """A folder with that release of PySpark, such as "4.0"."""
    folder = BUILD / f"spark-{version}"
    if not (folder / "pyspark").is_dir():
        into([f"pyspark=={version}.*"], folder)
    return folder


def into(requirements: list[str], folder: Path, *options: str) -> None:
    """Install these into a folder."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", *options, "--target"]
    subprocess.run([*command, str(folder), *requirements], check=True)


def jar(artifact: str, folder: Path) -> Path:
    """A jar of Maven Central: `group:name:version`."""
    _, name, version = artifact.split(":")
    path = folder / f"{name}-{version}.jar"
    if not path.exists():
        maven = need("mvn", f"{name} comes through Maven")
        command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True)
    return path


def lake_jars() -> str:
    """The jars of Delta and Iceberg, with commas between them."""
    return ",".join(str(jar(each, LAKEHOUSE / "jars")) for each in JARS)
