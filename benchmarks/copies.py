"""The cost of a second copy: the same member, with one agent and with two, alternately in one run.
All share the processors and one disk; on separate machines the second agent has its own."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.member import agent, member
from benchmarks.rows import compared

COPIES = (1, 2)
LOADS: dict[str, dict[str, Any]] = {
    "1 caller of 100 B": {"callers": 1, "bytes": 100},
    "64 callers of 100 B": {"callers": 64, "bytes": 100},
}


def run(rounds: int, seconds: int) -> list[dict[str, Any]]:
    """`set` by one member, for each load and number of copies; durability `always`."""
    rates: dict[tuple[str, int], list[float]] = {}
    notes: dict[tuple[str, int], str] = {}
    for _ in range(rounds):
        for load, options in LOADS.items():
            for copies in COPIES:
                found = _measure(copies, {"seconds": seconds, "warmup": seconds, **options})
                if found["hung"] or found["errors"]:
                    raise RuntimeError(f"{copies} copies, {load}: {found}")
                rates.setdefault((load, copies), []).append(found["sets_per_second"])
                notes[load, copies] = f"p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms"
    return [
        compared(
            f"member set, {load}, copies = {copies}",
            seen,
            rates[load, 1],
            "one copy",
            notes[load, copies],
        )
        for (load, copies), seen in rates.items()
    ]


def _measure(copies: int, options: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        endpoints = [
            running.enter_context(
                agent(folder, endpoint=f"ipc://{folder}/n{number}.sock", node=f"n{number}")
            )
            for number in range(1, copies + 1)
        ]
        properties: dict[str, Any] = {
            "property.agent": endpoints[0],
            "property.copies": copies,
            "property.copy-agents": ",".join(endpoints),
        }
        return member(mode="set", store="wal", **options, **properties)
