"""Prometheus's exporter for JMX."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from functools import cache
from pathlib import Path

from tests.storage.services import BUILD, need

EXPORTER = "io.prometheus.jmx:jmx_prometheus_javaagent:1.0.1"


@cache
def exporter_jar() -> Path:
    """From Maven Central, in build/services."""
    folder = BUILD / "jmx"
    if not list(folder.glob("*.jar")):
        maven = need("mvn", "Prometheus's exporter for JMX comes through Maven")
        subprocess.run(
            [
                maven,
                "-q",
                "-B",
                "dependency:copy",
                f"-Dartifact={EXPORTER}",
                f"-DoutputDirectory={folder}",
            ],
            check=True,
        )
    (jar,) = folder.glob("*.jar")
    return jar


def series(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"^(io_imapwal_\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}
