"""Finds our jars and Hazelcast's own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from rewrite_cli.console.failures import Failed

PACKAGE = Path(__file__).parents[1]
PLUGIN_NAME = "imap-wal-hazelcast.jar"
SEATUNNEL_NAME = "imap-wal-seatunnel.jar"
HAZELCAST_VERSION = "5.7.0"
_FETCH = (
    f"mvn -q dependency:copy -Dartifact=com.hazelcast:hazelcast:{HAZELCAST_VERSION} "
    "-DoutputDirectory=."
)


def plugin_jar(name: str = PLUGIN_NAME) -> Path:
    """One of our jars: from the wheel, or from Maven's build in a source tree. Raises `Failed` if
    there is none, or if it is damaged."""
    shipped = PACKAGE / "jars" / name
    if shipped.is_file():
        _check(shipped)
        return shipped
    built = PACKAGE.parent / "hazelcast_plugin" / "target" / name
    if built.is_file():
        return built
    raise Failed(
        f"{name} was not found: a wheel ships it; in a source tree build it with "
        "`make setup` (or mvn -B -f hazelcast_plugin package)"
    )


def _check(jar: Path) -> None:
    """Raises `Failed` unless this is the jar that the wheel was built with."""
    expected = jar.with_name(f"{jar.name}.sha256").read_text(encoding="ascii").split()[0]
    checksum = hashlib.sha256(jar.read_bytes()).hexdigest()
    if checksum != expected:
        raise Failed(
            f"{jar} is not the jar of this release: its SHA-256 is {checksum}, not {expected}; "
            "install imap-wal again"
        )


def hazelcast_jar(jar: Path | None = None) -> Path:
    """Hazelcast's jar: as given, next to the plug-in's build, or from the local Maven
    repository. Raises `Failed` if it is not there."""
    if jar is not None:
        if not jar.is_file():
            raise Failed(
                f"{jar} is not a file; --hazelcast-jar takes the path of "
                f"hazelcast-{HAZELCAST_VERSION}.jar"
            )
        return jar
    name = f"hazelcast-{HAZELCAST_VERSION}.jar"
    repository = (
        Path.home()
        / ".m2"
        / "repository"
        / "com"
        / "hazelcast"
        / "hazelcast"
        / HAZELCAST_VERSION
        / name
    )
    for path in (PACKAGE.parent / "hazelcast_plugin" / "target" / "lib" / name, repository):
        if path.is_file():
            return path
    raise Failed(
        f"{name} was not found; fetch it with `{_FETCH}`, then pass --hazelcast-jar ./{name} "
        "or set IMAP_WAL_HAZELCAST_JAR"
    )


def java() -> str:
    """The java to start: from JAVA_HOME, or from the path. Raises `Failed` if there is none."""
    home = os.environ.get("JAVA_HOME")
    executable = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if executable is None:
        raise Failed(
            f"no java in {home}/bin (JAVA_HOME)"
            if home
            else "no java on the path: install Java 17, or set JAVA_HOME"
        )
    return executable


def java_version() -> int:
    """Java's feature release: 17, 21, … Raises `Failed` if Java is not there or does not print
    it."""
    return _release_of(java())


@cache
def _release_of(executable: str) -> int:
    run = subprocess.run(
        [executable, "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in run.stderr.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "java.specification.version":
            return int(value.strip().partition(".")[0])
    raise Failed(f"{executable} does not print its version: {run.stderr.strip()[:200]}")
