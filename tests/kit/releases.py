"""Releases that only some tests need, in `build/`; fetched once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cluster.processes import ROOT
from tests.storage.services import need

BUILD = ROOT / "build"


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
