"""What 10,000 changes cost: processor time of agent and member, bytes on the disk, memory. At a
fixed rate, so that commits are as large as in operation; for `docs/how-to/sizing.md`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.member import member
from benchmarks.processes import processor_seconds
from rewrite_cli.local_cluster.launcher import die_with_parent
from tests.support import eventually

PER = 10_000
RATES = {100: 10_000, 1_000: 10_000, 10_000: 2_000}
"""Bytes of a value → changes in a second."""
SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Used:
    """What a process has used. `seconds`: of processor time. `memory`: the most, in bytes.
    `written`: bytes that the disk of a folder has written for all processes. What the kernel counts
    for a process is no measure: it counts a large page whole if a few bytes of it change."""

    seconds: float
    written: int
    memory: int

    @classmethod
    def of(cls, pid: int, disk: Path) -> Used:
        folder = Path(f"/proc/{pid}")
        named = {
            name: value.split()[0]
            for name, _, value in (
                line.partition(":") for line in folder.joinpath("status").read_text().splitlines()
            )
            if value.split()
        }
        os.sync()
        device = disk.stat().st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        return cls(
            processor_seconds(pid),
            SECTOR_BYTES * int(block.read_text().split()[6]),
            int(named["VmHWM"]) * 1024,
        )


@contextmanager
def agent(folder: Path) -> Iterator[tuple[str, int]]:
    """An agent with the default settings, which does not archive automatically. Yields its endpoint
    and its process id."""
    endpoint, config = f"ipc://{folder}/agent.sock", folder / "agent.toml"
    config.write_text(
        f'url = "{(folder / "log").as_uri()}"\nnode = "n1"\nendpoint = "{endpoint}"\n'
    )
    command = [sys.executable, "-m", "rewrite_cli.cli", "agent", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        eventually((folder / "agent.sock").exists, "the agent", 60)
        yield endpoint, process.pid
    finally:
        process.terminate()
        process.wait(60)


def run(rounds: int, seconds: int) -> list[dict[str, Any]]:
    """For each size of a value: the agent, the member with the plug-in, and without it."""
    rows = []
    for size, rate in RATES.items():
        options = {
            "mode": "set", "callers": 64, "bytes": size, "rate": rate, "seconds": seconds,
            "warmup": seconds, "keys": 20_000,
        }  # fmt: skip
        found: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, value in _once(options).items():
                found.setdefault(name, []).append(value)
        bare = statistics.median(found["member without a map store, processor time"])
        for name, seen in found.items():
            unit, per = UNITS[name]
            rows.append(_row(f"{size:,} B: {name}", seen, unit, bare if per else None))
    return rows


UNITS = {
    "agent, processor time": (f"ms for {PER:,} changes", True),
    "member, processor time": (f"ms for {PER:,} changes", True),
    "member without a map store, processor time": (f"ms for {PER:,} changes", True),
    "written to the disk": (f"KiB for {PER:,} changes", False),
    "agent, memory at most": ("MiB", False),
}


def _once(options: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name, agent(Path(name)) as (endpoint, pid):
        before = Used.of(pid, Path(name))
        ours = member(**options, store="wal", property__agent=endpoint)
        after = Used.of(pid, Path(name))
    bare = member(**options, store="none")
    # The agent also worked while the member warmed up, at the same rate.
    sets = ours["sets"] * (options["warmup"] + options["seconds"]) / options["seconds"]
    return {
        "agent, processor time": 1000 * PER * (after.seconds - before.seconds) / sets,
        "member, processor time": 1000 * PER * ours["cpu_seconds"] / ours["sets"],
        "member without a map store, processor time": 1000
        * PER
        * bare["cpu_seconds"]
        / bare["sets"],
        "written to the disk": PER * (after.written - before.written) / sets / 1024,
        "agent, memory at most": after.memory / 1024**2,
    }


def _row(label: str, seen: list[float], unit: str, bare: float | None) -> dict[str, Any]:
    median = statistics.median(seen)
    return {
        "measurement": label,
        "median": round(median),
        "least": round(min(seen)),
        "most": round(max(seen)),
        "unit": unit,
        "ratio": round(median / bare, 2) if bare else 1.0,
        "to": "member without a map store" if bare else "itself",
        "target": None,
        "note": "",
    }
