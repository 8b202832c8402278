"""Puts the plug-in's jar and its SHA-256 into the wheel, and refuses to build one without it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

JAR = "hazelcast_plugin/target/imap-wal-hazelcast.jar"
IN_WHEEL = "rewrite_cli/jars/imap-wal-hazelcast.jar"
HASH = f"{JAR}.sha256"
PROPERTIES = "io/imapwal/hazelcast/plugin.properties"
TIME = (2026, 1, 1, 0, 0, 0)
"""The time of every file in a reproducible jar; see `project.build.outputTimestamp` in pom.xml."""


class JarBuildHook(BuildHookInterface[Any]):
    """An editable install needs no jar: the CLI then looks for it where Maven left it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        jar = Path(self.root) / JAR
        if not jar.is_file():
            raise FileNotFoundError(
                f"{JAR} is missing: the wheel ships the Hazelcast plug-in; build it first "
                "with `mvn -B -f hazelcast_plugin package` (or `make setup`)"
            )
        with zipfile.ZipFile(jar) as file:
            if {entry.date_time for entry in file.infolist()} != {TIME}:
                raise ValueError(
                    f"{JAR} was not built from this source: its files have other times; run "
                    "`mvn -B -f hazelcast_plugin clean package`"
                )
            found = file.read(PROPERTIES).decode().strip()
        if found != f"version={self.metadata.version}":
            raise ValueError(
                f"{JAR} says {found}, and this is {self.metadata.version}; run `mvn -B -f "
                "hazelcast_plugin clean package`"
            )
        build_data["force_include"][str(jar)] = IN_WHEEL if self.target_name == "wheel" else JAR
        if self.target_name == "wheel":
            hash_file = Path(self.root) / HASH
            hash_file.write_text(
                f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n", encoding="ascii"
            )
            build_data["force_include"][str(hash_file)] = f"{IN_WHEEL}.sha256"
