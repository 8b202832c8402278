"""The same log restored by one member and by three, each with an agent: the time until `size`
returns, which waits for every partition. Each member and its agent have the same part of a
processor, as if each pair had its own small machine. Where this machine does not allow that, all
share its processors, and three cannot be faster."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cluster_log import compared, fill, text
from benchmarks.shares import shares
from tests.cluster.classes import compile_java
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map

MEMBERS = 3
PART = 0.2
"""Of all processors of this machine, for each member and its agent."""


def run(entries: int) -> list[dict[str, Any]]:
    def maps(endpoint: str) -> Mapping[str, Any]:
        return {"default": logged_map(endpoint)}

    processors = PART * (os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as name, shares(MEMBERS, processors) as groups:
        folder = Path(name)
        with Cluster(
            folder,
            compile_java(folder),
            maps,
            options=("-Xmx1g",),
            lifetime_timeout_s=0,
            restore_at_start=False,  # else members start while the agent merges
            durability="os",
        ) as cluster:
            cluster.start(MEMBERS)
            fill(cluster, entries)
            cluster.groups = groups
            one, _ = _restored(cluster, 1, entries)
            three, parts = _restored(cluster, MEMBERS, entries)
    limit = (
        f"each member and its agent have {processors:.2f} of a processor"
        if groups
        else "all share the processors of this machine"
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
            "note": f"one member: {one:.2f} s; {limit}; of three, without the merge of the logs: "
            f"{text(parts)}",
        }
    ]


def _restored(
    cluster: Cluster, members: int, entries: int
) -> tuple[float, list[tuple[int, float]]]:
    """Seconds, and for each member: entries and seconds."""
    cluster.kill_everything()
    cluster.start(members)
    client = cluster.client(invocation_timeout=600)
    began = time.monotonic()
    assert client.get_map("orders").blocking().size() == entries
    return time.monotonic() - began, compared(cluster, "restored")
