"""The class path of test members: Hazelcast, the plug-in, the tests' own classes, and an archive of
classes that makes members start with less work."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from rewrite_cli.local_cluster import jars
from rewrite_cli.local_cluster.launcher import JVM_FLAGS
from tests.cluster.configuration import member_config
from tests.cluster.processes import QUICK_JVM, ROOT, Member, archive_of
from tests.kit.ports import free_ports

JAVA = Path(__file__).parent / "java"
BUILD = ROOT / "build" / "members"


def compile_java(folder: Path) -> str:
    """The class path of a test member: Hazelcast, the test's classes, and a copy of the plug-in (so
    that a rebuild does not replace the jar of a running JVM). What was built is kept in
    `build/members`, for all processes and later runs. `folder` is for files that are not kept."""
    hazelcast_jar, built = jars.hazelcast_jar(), jars.plugin_jar()
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plugin = BUILD / f"plugin-{_digest(built.read_bytes())}.jar"
        if not plugin.exists():
            copy = Path(shutil.copy(built, plugin.with_suffix(".copy")))
            copy.rename(plugin)
        # An archive of classes is valid for the very files that it was made with.
        place = BUILD / _digest(
            *(path.read_bytes() for path in (*_sources(), Path(__file__))),
            *(
                f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}".encode()
                for path in (hazelcast_jar, Path(jars.java()).resolve())
            ),
            repr((JVM_FLAGS, QUICK_JVM)).encode(),
        )
        tests = place / "tests.jar"
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            _compile(hazelcast_jar, tests, folder)
            archive_classes(os.pathsep.join([str(hazelcast_jar), str(tests)]), folder)
            (place / "complete").touch()
    return os.pathsep.join([str(hazelcast_jar), str(tests), str(plugin)])


def _sources() -> list[Path]:
    return sorted(path for path in JAVA.rglob("*") if path.is_file())


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[
        :16
    ]


def _compile(hazelcast_jar: Path, tests: Path, folder: Path) -> None:
    """The archive below needs jars."""
    tests.parent.mkdir()
    classes = Path(shutil.copytree(JAVA / "META-INF", folder / "classes/META-INF")).parent
    sources = [str(path) for path in _sources() if path.suffix == ".java"]
    subprocess.run(
        ["javac", "-nowarn", "-d", str(classes), "-cp", f"{hazelcast_jar}", *sources], check=True
    )
    subprocess.run(["jar", "--create", "--file", str(tests), "-C", str(classes), "."], check=True)


def archive_classes(classpath: str, folder: Path) -> None:
    """Let a member run once and archive the classes that it has loaded. Members whose class path
    begins with this one start with a third less work."""
    (port,) = free_ports(1)
    config = member_config("archive", port, [port], {})
    written = f"-XX:ArchiveClassesAtExit={archive_of(classpath)}"
    member = Member(folder, "archive", port, config, classpath, (written,))
    member.launch()
    member.wait()
    member.ask("write")
    member.leave()
