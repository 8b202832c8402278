"""One of three members is killed: the time until every partition answers again, with the log and
without. The members' own logs say how much of it the comparison with the log took."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hazelcast.errors import HazelcastError

from benchmarks.cluster_log import VALUE, compared, fill, text
from imap_wal.agent.reads.merges import FRESH_BYTES
from tests.cluster.classes import compile_java
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.processes import Agent
from tests.cluster.waiting import until

# With this many random keys, each of the 271 partitions has one.
PROBES = 5_000
WITHIN_S = 120.0


def run(entries: int) -> list[dict[str, Any]]:
    bare, _ = _killed(entries, log=False)
    ours, shares = _killed(entries, log=True)
    return [
        {
            "measurement": f"one of three members killed, {entries:,} entries: until every "
            "partition answers",
            "median": round(ours, 2),
            "unit": "s",
            "ratio": round(ours - bare, 2),
            "to": "more seconds than without a map store",
            "target": 3.0,
            "at_most": True,
            "note": f"without: {bare:.2f} s; compared with the log by each survivor: "
            f"{text(shares)}",
        }
    ]


def _killed(entries: int, *, log: bool) -> tuple[float, list[tuple[int, float]]]:
    """Seconds, and for each settlement: entries and seconds."""

    def maps(endpoint: str) -> Mapping[str, Any]:
        return {"default": logged_map(endpoint, {"settle-timeout-ms": "120000"}) if log else {}}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Cluster(
            folder, compile_java(folder), maps, options=("-Xmx1g",), durability="os"
        ) as cluster:
            cluster.start(3)
            orders = fill(cluster, entries)
            cluster.wait_safe(3)
            if log:
                # Then the tails of the logs are short, as with fewer changes per second.
                until(
                    "the agents have merged most of it",
                    lambda: all(_merged(agent) for agent in cluster.agents),
                    300,
                    0.5,
                )
            cluster.members[2].kill()
            began = time.monotonic()
            with ThreadPoolExecutor(16) as callers:
                list(
                    callers.map(
                        lambda key: _get(orders, key), range(0, entries, max(1, entries // PROBES))
                    )
                )
            return time.monotonic() - began, compared(cluster, "settled")


def _merged(agent: Agent) -> bool:
    stat = agent.stat()
    return stat is not None and stat["unmerged_bytes"] < FRESH_BYTES


def _get(orders: Any, key: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            assert orders.get(key) == VALUE
            return
        except HazelcastError:
            if time.monotonic() > deadline:
                raise
