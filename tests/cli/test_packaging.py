"""The wheel: all four packages, the jar, and a clear refusal without the jar."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import pkgutil
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

import imap_wal
from imap_wal.version import VERSION
from rewrite_cli.console.failures import Failed
from rewrite_cli.local_cluster.jars import plugin_jar
from tests.cli.conftest import Run
from tests.kit.effort import thorough

ROOT = Path(__file__).parents[2]


JAVA_8, JAVA_17 = 52, 61


def java_versions(jar: zipfile.ZipFile, package: str) -> set[int]:
    """Of the byte code of its classes."""
    return {
        int.from_bytes(jar.read(name)[6:8], "big")
        for name in jar.namelist()
        if name.startswith(package) and name.endswith(".class")
    }


def hook(root: Path) -> Any:
    sys.path.insert(0, str(ROOT))
    try:
        from hatch_build import JarBuildHook
    finally:
        sys.path.pop(0)
    metadata: Any = SimpleNamespace(version=VERSION)
    return JarBuildHook(str(root), {}, None, metadata, str(root), "wheel")


def test_a_wheel_without_the_jar_is_refused(
    tmp_path: Path,
) -> None:
    """An editable install needs no JAR."""
    with pytest.raises(FileNotFoundError, match="mvn -B -f hazelcast_plugin package"):
        hook(tmp_path).initialize("standard", {"force_include": {}})
    hook(tmp_path).initialize("editable", {"force_include": {}})


def test_a_jar_with_own_timestamps_is_refused(tmp_path: Path) -> None:
    """Its files have times of their own."""
    jar = tmp_path / "hazelcast_plugin" / "target" / "imap-wal-hazelcast.jar"
    jar.parent.mkdir(parents=True)
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("a", "")
    with pytest.raises(ValueError, match="other times"):
        hook(tmp_path).initialize("standard", {"force_include": {}})


def test_a_jar_of_another_version_is_refused(tmp_path: Path) -> None:
    jar = tmp_path / "hazelcast_plugin" / "target" / "imap-wal-hazelcast.jar"
    jar.parent.mkdir(parents=True)
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr(
            zipfile.ZipInfo("io/imapwal/hazelcast/plugin.properties", (2026, 1, 1, 0, 0, 0)),
            "version=0.0.9\n",
        )
    with pytest.raises(ValueError, match=r"says version=0\.0\.9, and this is "):
        hook(tmp_path).initialize("standard", {"force_include": {}})


def test_members_get_only_the_jar_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "jars" / "imap-wal-hazelcast.jar"
    jar.parent.mkdir()
    jar.write_bytes(b"of the release")
    jar.with_name(f"{jar.name}.sha256").write_text(
        f"{hashlib.sha256(b'of the release').hexdigest()}  {jar.name}\n"
    )
    monkeypatch.setattr("rewrite_cli.local_cluster.jars.PACKAGE", tmp_path)
    assert plugin_jar() == jar
    jar.write_bytes(b"another one")
    with pytest.raises(Failed, match="not the jar of this release"):
        plugin_jar()


def test_every_requirement_has_a_hash_and_is_needed() -> None:
    lines = (
        (ROOT / "requirements" / "constraints.txt").read_text().replace("\\\n", " ").splitlines()
    )
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    assert all("==" in line and "--hash=sha256:" in line for line in pins)
    needed = _needed("imap-wal", {"dev"})
    unused = {_name(line.partition("==")[0]) for line in pins} - needed
    assert unused == set()


def _name(text: str) -> str:
    return re.sub("[-_.]+", "-", text.strip()).lower()


def _needed(package: str, extras: set[str]) -> set[str]:
    """What is installed here because this package requires it, directly or not."""
    found: dict[str, set[str]] = {}
    waiting = [(_name(package), frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if name in found and wanted <= found[name]:
            continue
        found.setdefault(name, set()).update(wanted)
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        counting = [
            each
            for each in map(Requirement, requires)
            if each.marker is None
            or any(each.marker.evaluate({"extra": extra}) for extra in ("", *found[name]))
        ]
        waiting += [(_name(each.name), frozenset(each.extras)) for each in counting]
    return set(found)


def test_plug_in_and_library_have_one_version() -> None:
    modules = ("", "wire", "plugin", "seatunnel")
    poms = [(ROOT / "hazelcast_plugin" / module / "pom.xml").read_text() for module in modules]
    versions = re.findall(
        r"<artifactId>imap-wal-java</artifactId>\s*<version>(.*)</version>", "".join(poms)
    )
    assert versions == [VERSION] * 4, "make version NEW=… writes all"
    assert imap_wal.__version__ == VERSION


@thorough
@pytest.mark.cluster
def test_the_source_archive_is_complete(
    tmp_path: Path,
) -> None:
    """It has the licence, the changelog and all that a build needs."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    (archive,) = tmp_path.glob(f"imap_wal-{VERSION}.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {
        "LICENSE",
        "NOTICE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "CODE_OF_CONDUCT.md",
        "SECURITY.md",
        "README.md",
        "pyproject.toml",
        "hatch_build.py",
        "Makefile",
        ".ci/run",
        "requirements/constraints.txt",
        "requirements/lowest.txt",
        "hazelcast_plugin/pom.xml",
        "hazelcast_plugin/wire/pom.xml",
        "hazelcast_plugin/plugin/pom.xml",
        "hazelcast_plugin/seatunnel/pom.xml",
        "hazelcast_plugin/target/imap-wal-hazelcast.jar",
        "hazelcast_plugin/target/imap-wal-seatunnel.jar",
        "imap_wal/py.typed",
        "tests/conftest.py",
    } <= names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.cluster
def test_the_wheel_has_packages_and_jar(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        jars = {
            name: (
                file.read(f"rewrite_cli/jars/{name}"),
                file.read(f"rewrite_cli/jars/{name}.sha256").decode(),
            )
            for name in ("imap-wal-hazelcast.jar", "imap-wal-seatunnel.jar")
        }
    assert {name.rpartition("/")[2] for name in names} >= {"LICENSE", "NOTICE"}
    assert f"imap_wal-{VERSION}.dist-info/METADATA" in names
    for name, (jar, checksum) in jars.items():
        assert checksum.split() == [hashlib.sha256(jar).hexdigest(), name]
        with zipfile.ZipFile(io.BytesIO(jar)) as file:
            entries = set(file.namelist())
            assert {"META-INF/LICENSE", "META-INF/NOTICE"} <= entries
            assert {entry.date_time for entry in file.infolist()} == {(2026, 1, 1, 0, 0, 0)}, (
                "two builds give the same bytes"
            )
            assert not [path for path in entries if not path.startswith(("META-INF/", "io/"))]
            assert java_versions(file, "io/imapwal/wire/") == {JAVA_8}
            if name == "imap-wal-hazelcast.jar":
                assert java_versions(file, "io/imapwal/hazelcast/") == {JAVA_17}
            else:
                assert java_versions(file, "io/") == {JAVA_8}
                services = [path for path in entries if path.startswith("META-INF/services/com.")]
                assert not services, "Hazelcast 5.1 could not load them"
    assert {
        "imap_wal/__init__.py",
        *(
            f"{package}/py.typed"
            for package in ("storage_backends", "imap_wal", "rewrite_cli", "pyspark_imap_wal")
        ),
        "storage_backends/interface.py",
        "rewrite_cli/cli.py",
        "pyspark_imap_wal/__init__.py",
    } <= names
    assert f"imap_wal-{VERSION}.data/data/share/man/man1/imap-wal.1" in names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


@pytest.mark.cluster
def test_the_path_of_the_jar_for_seatunnel(run: Run) -> None:
    printed = json.loads(run("plugin", "path", "--seatunnel", "--output", "json").out)
    assert Path(printed["jar"]).name == "imap-wal-seatunnel.jar"
    with zipfile.ZipFile(printed["jar"]) as file:
        assert f"{printed['factory'].replace('.', '/')}.class" in file.namelist()


def test_documents_and_examples_import_imap_wal_only() -> None:
    """Of the packages of the wheel. The other names are too general to be relied on."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    examples = [path for path in (ROOT / "examples").rglob("*.py") if "demo" not in path.parts]
    others = re.compile(
        r"^\s*(?:from|import) (?:storage_backends|rewrite_cli)\b"
        r"|^::: (?!imap_wal\.|mkdocs-click)"
        r"|[\"'`](?:storage_backends|rewrite_cli)[.:]\w",
        re.MULTILINE,
    )
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in (*pages, *examples)
        if "decisions" not in path.parts
    }
    assert len(texts) > 50
    assert {
        str(path): others.findall(text) for path, text in texts.items() if others.search(text)
    } == {}


def test_spark_would_find_the_data_source_package() -> None:
    assert "pyspark_imap_wal" in {module.name for module in pkgutil.iter_modules()}
