"""Many maps of one entry each in two members, with the log and without: the time to make them, the
time to read them all after every process was killed, and the heap of a member for each."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.classes import compile_java
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.processes import Member

CALLERS = 16
USED = re.compile(r"used (\d+)K")


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, and bytes of heap for each map on one member."""

    made: float
    read: float
    heap: float


def run(maps: int) -> list[dict[str, Any]]:
    bare, ours = _times(maps, log=False), _times(maps, log=True)
    return [
        _row(
            f"{maps:,} maps with an entry each are made in two members",
            ours.made,
            "s",
            bare.made,
            30.0 * maps / 5000,
        ),
        _row(
            f"an entry of each of {maps:,} maps is read, after everything was killed",
            ours.read,
            "s",
            None,
            60.0 * maps / 5000,
        ),
        _row(
            "heap of a member for each of these maps",
            ours.heap / 1024,
            "KB",
            bare.heap / 1024,
            50.0,
        ),
    ]


def _row(
    measurement: str, ours: float, unit: str, bare: float | None, target: float
) -> dict[str, Any]:
    return {
        "measurement": measurement,
        "median": round(ours, 2),
        "unit": unit,
        "ratio": round(ours / target, 2),
        "to": f"of the target for so many, {target:g} {unit}",
        "target": 1.0,
        "at_most": True,
        "note": "" if bare is None else f"without a map store: {bare:.2f} {unit}",
    }


def _times(maps: int, *, log: bool) -> Times:
    def configs(endpoint: str) -> Mapping[str, Any]:
        return {"default": logged_map(endpoint)} if log else {}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Cluster(
            folder, compile_java(folder), configs, options=("-Xmx3g",), durability="os"
        ) as cluster:
            cluster.start(2)
            client = cluster.client()
            client.get_map("first").blocking().put("key", 0)
            cluster.wait_safe(2)
            before = _heap(cluster.members[0])
            began = time.monotonic()
            with ThreadPoolExecutor(CALLERS) as callers:
                list(
                    callers.map(
                        lambda number: (
                            client.get_map(f"map-{number}").blocking().put("key", number)
                        ),
                        range(maps),
                    )
                )
            made = time.monotonic() - began
            heap = (_heap(cluster.members[0]) - before) / maps
            if not log:
                return Times(made, 0.0, heap)
            cluster.kill_everything()
            cluster.start(2)
            again = cluster.client(invocation_timeout=600)
            began = time.monotonic()
            with ThreadPoolExecutor(CALLERS) as callers:
                found = list(
                    callers.map(
                        lambda number: again.get_map(f"map-{number}").blocking().get("key"),
                        range(maps),
                    )
                )
            assert found == list(range(maps))
            return Times(made, time.monotonic() - began, heap)


def _heap(member: Member) -> int:
    """Bytes in use after a collection."""
    subprocess.run(["jcmd", str(member.pid), "GC.run"], check=True, capture_output=True)
    printed = subprocess.run(
        ["jcmd", str(member.pid), "GC.heap_info"], check=True, capture_output=True, text=True
    ).stdout
    return sum(int(found) for found in USED.findall(printed.partition("Metaspace")[0])) * 1024
