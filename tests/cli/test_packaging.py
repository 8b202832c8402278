"""The wheel: all four packages, the jar, and a clear refusal without the jar."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def hook(root: Path) -> Any:
    sys.path.insert(0, str(ROOT))
    try:
        from hatch_build import JarBuildHook
    finally:
        sys.path.pop(0)
    return JarBuildHook(str(root), {}, None, SimpleNamespace(), str(root), "wheel")


def test_a_wheel_without_the_jar_is_refused_and_an_editable_install_needs_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="mvn -B -f hazelcast_plugin package"):
        hook(tmp_path).initialize("standard", {"force_include": {}})
    hook(tmp_path).initialize("editable", {"force_include": {}})


@pytest.mark.cluster
def test_the_wheel_holds_packages_and_jar(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert "rewrite_cli/jars/imap-wal-hazelcast.jar" in names
    assert {
        "imap_wal/__init__.py",
        "imap_wal/py.typed",
        "storage_backends/interface.py",
        "rewrite_cli/cli.py",
        "pyspark_imap_wal/__init__.py",
    } <= names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_spark_would_find_the_data_source_package() -> None:
    assert "pyspark_imap_wal" in {module.name for module in pkgutil.iter_modules()}
