"""The same log restored by one member and by three, each with an agent: the time until `size`
returns, which waits for every partition. All agents share this machine's processors and disk, so
three members cannot be three times as fast here."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cluster_log import compared, fill, text
from tests.cluster.harness import Cluster, compile_java, logged_map


def run(entries: int) -> list[dict[str, Any]]:
    def maps(endpoint: str) -> Mapping[str, Any]:
        return {"default": logged_map(endpoint)}

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
            "note": f"one member: {one:.2f} s; of three, without the merge of the logs: "
            f"{text(shares)}",
        }
    ]


def _restored(
    cluster: Cluster, members: int, entries: int
) -> tuple[float, list[tuple[int, float]]]:
    """Seconds, and for each member: entries and seconds."""
    cluster.kill_everything()
    cluster.start(members)
    client = cluster.client()
    began = time.monotonic()
    assert client.get_map("orders").blocking().size() == entries
    return time.monotonic() - began, compared(cluster, "restored")
