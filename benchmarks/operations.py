"""How long each operation of a map takes on two members with one backup, when its key is absent and
when it is present: a member measures it, one call after the other. None may take 100 ms at the
median: an operation that waits for a timeout of Hazelcast takes seconds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.cluster.classes import compile_java
from tests.cluster.operation_times import STATES, measured

LIMIT_MS = 100


def run(repeats: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        times = measured(folder, compile_java(folder), repeats)
    return [
        _row(f"{operation}, key {state}", calls[state])
        for operation, calls in times.items()
        for state in STATES
    ]


def _row(measurement: str, calls: list[float]) -> dict[str, Any]:
    found = median(calls)
    return {
        "measurement": measurement,
        "median": round(found, 2),
        "least": round(calls[0], 2),
        "most": round(calls[-1], 2),
        "unit": "ms",
        "ratio": round(found / LIMIT_MS, 4),
        "to": f"{LIMIT_MS} ms",
        "target": 1.0,
        "at_most": True,
    }
