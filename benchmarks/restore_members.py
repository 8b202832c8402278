"""The same log restored by one member and by three, each with an agent: how long until `size`
answers. It waits for every partition. Each member and its agent have half a processor together,
where this can be limited: then three of them have a speed of their own, as on three machines.
Otherwise all share the processors of this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.cluster_log import compared, fill, text
from benchmarks.machines import can_limit, limited
from tests.cluster.harness import Cluster, compile_java, logged_map

SHARE = 0.5
"""Of one processor, for a member and its agent."""


def run(entries: int) -> list[dict[str, Any]]:
    def maps(endpoint: str) -> Mapping[str, Any]:
        # With half a processor, a JVM and a merge leave an agent without an answer for seconds.
        return {"default": logged_map(endpoint, {"agent-timeout-ms": "30000"})}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Cluster(
            folder,
            compile_java(folder),
            maps,
            options=("-Xmx1g",),
            lifetime_timeout_s=0,
            durability="os",
        ) as cluster:
            cluster.start(3)
            fill(cluster, entries)
            one, _ = _restored(cluster, 1, entries)
            three, shares = _restored(cluster, 3, entries)
    machines = (
        f"{SHARE:g} processors for each member and its agent"
        if can_limit()
        else "all share this machine's processors"
    )
    return [
        {
            "measurement": f"restore of {entries:,} entries by three members, each from its own "
            "agent",
            "median": round(three, 2),
            "unit": "s",
            "ratio": round(three / one, 2),
            "to": "the time of one member",
            "target": 1.0,
            "at_most": True,
            "note": f"{machines}; one member: {one:.2f} s; of three, without the merge of "
            "the logs: "
            f"{text(shares)}",
        }
    ]


def _restored(
    cluster: Cluster, members: int, entries: int
) -> tuple[float, list[tuple[int, float]]]:
    """Seconds, and of each member: entries and seconds."""
    cluster.kill_everything()
    cluster.start(members)
    client = cluster.client()
    machines = [
        (agent.pid, member.pid)
        for agent, member in zip(cluster.agents, cluster.running, strict=False)
    ]
    with limited(machines, SHARE) if can_limit() else nullcontext():
        began = time.monotonic()
        assert client.get_map("orders").blocking().size() == entries
        return time.monotonic() - began, compared(cluster, "restored")
