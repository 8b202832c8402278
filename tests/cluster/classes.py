"""The class path of test members: Hazelcast, the plug-in, the tests' own classes, and an archive of
classes that makes members start with less work."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from rewrite_cli.local_cluster import jars
from tests.cluster.configuration import member_config
from tests.cluster.processes import Member, archive_of, free_ports

JAVA = Path(__file__).parent / "java"


def compile_java(folder: Path) -> str:
    """The class path of a test member: Hazelcast, the test's classes, and a copy of the plug-in (so
    that a rebuild does not replace the jar of a running JVM)."""
    plugin = Path(shutil.copy(jars.plugin_jar(), folder / "plugin.jar"))
    hazelcast_jar, tests = jars.hazelcast_jar(), folder / "tests.jar"
    classes = Path(shutil.copytree(JAVA / "META-INF", folder / "classes/META-INF")).parent
    sources = [str(path) for path in sorted(JAVA.glob("*.java"))]
    subprocess.run(
        ["javac", "-nowarn", "-d", str(classes), "-cp", f"{hazelcast_jar}", *sources], check=True
    )
    # The archive below needs jars.
    subprocess.run(["jar", "--create", "--file", str(tests), "-C", str(classes), "."], check=True)
    archive_classes(os.pathsep.join([str(hazelcast_jar), str(tests)]), folder)
    return os.pathsep.join([str(hazelcast_jar), str(tests), str(plugin)])


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
