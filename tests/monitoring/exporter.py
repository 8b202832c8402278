"""Prometheus's exporter for JMX."""

from __future__ import annotations

import re
import urllib.request
from functools import cache
from pathlib import Path

from tests.kit.releases import jar
from tests.storage.services import BUILD

EXPORTER = "io.prometheus.jmx:jmx_prometheus_javaagent:1.0.1"


@cache
def exporter_jar() -> Path:
    """From Maven Central, in build/services."""
    return jar(EXPORTER, BUILD / "jmx")


def series(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"^(io_imapwal_\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}
