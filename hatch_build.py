"""Puts the plug-in's jar into the wheel, and refuses to build one without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

JAR = "hazelcast_plugin/target/imap-wal-hazelcast.jar"
IN_WHEEL = "rewrite_cli/jars/imap-wal-hazelcast.jar"


class JarBuildHook(BuildHookInterface[Any]):
    """An editable install needs no jar: the CLI then looks for it where Maven left it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        jar = Path(self.root) / JAR
        if not jar.is_file():
            raise FileNotFoundError(
                f"{JAR} is missing: the wheel ships the Hazelcast plug-in; build it first with `mvn -B -f hazelcast_plugin package` (or `make setup`)"
            )
        build_data["force_include"][str(jar)] = IN_WHEEL if self.target_name == "wheel" else JAR
