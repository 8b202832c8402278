"""Puts our jars and their SHA-256 into the wheel, and refuses to build one without them."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = "hazelcast_plugin/target"
IN_WHEEL = "rewrite_cli/jars"
JARS = {
    "imap-wal-hazelcast.jar": "io/imapwal/hazelcast/plugin.properties",
    "imap-wal-seatunnel.jar": "io/imapwal/seatunnel/plugin.properties",
}
"""Name → the file in it that has its version."""
TIME = (2026, 1, 1, 0, 0, 0)
"""The time of every file in a reproducible jar; see `project.build.outputTimestamp` in pom.xml."""


class JarBuildHook(BuildHookInterface[Any]):
    """An editable install needs no jar: the CLI then looks for it where Maven left it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for name in JARS:
            self._add(name, build_data["force_include"])

    def _add(self, name: str, included: dict[str, str]) -> None:
        path = f"{BUILT}/{name}"
        jar = Path(self.root) / path
        if not jar.is_file():
            raise FileNotFoundError(
                f"{path} is missing: the wheel ships it; build it first "
                "with `mvn -B -f hazelcast_plugin package` (or `make setup`)"
            )
        with zipfile.ZipFile(jar) as file:
            if {entry.date_time for entry in file.infolist()} != {TIME}:
                raise ValueError(
                    f"{path} was not built from this source: its files have other times; run "
                    "`mvn -B -f hazelcast_plugin clean package`"
                )
            version = file.read(JARS[name]).decode().strip()
        if version != f"version={self.metadata.version}":
            raise ValueError(
                f"{path} says {version}, and this is {self.metadata.version}; run `mvn -B -f "
                "hazelcast_plugin clean package`"
            )
        included[str(jar)] = f"{IN_WHEEL}/{name}" if self.target_name == "wheel" else path
        if self.target_name == "wheel":
            hash_file = Path(f"{jar}.sha256")
            hash_file.write_text(
                f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n", encoding="ascii"
            )
            included[str(hash_file)] = f"{IN_WHEEL}/{name}.sha256"
