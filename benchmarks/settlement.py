"""One of three members is killed: how long until every partition answers again, with the log and
without. The members' own logs say how much of that the comparison with the log took."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hazelcast.errors import HazelcastError

from tests.cluster.harness import Cluster, compile_java, logged_map

VALUE = b"v" * 100
BATCH = 10_000
# With so many keys at random, each of the 271 partitions has one.
PROBES = 5_000
WITHIN_S = 120.0
SETTLED = re.compile(r'map "orders": \d+ of \d+ partition\(s\) settled .*: ([\d,]+) entries compared, .* in ([\d,]+) ms')


def run(entries: int) -> list[dict[str, Any]]:
    bare, _ = _killed(entries, log=False)
    ours, compared = _killed(entries, log=True)
    longest = max((seconds for _, seconds in compared), default=0.0)
    return [
        {
            "measurement": f"one of three members killed, {entries:,} entries: until every partition answers",
            "median": round(ours, 2),
            "unit": "s",
            "ratio": round(ours - bare, 2),
            "to": "more seconds than without a map store",
            "target": 3.0,
            "at_most": True,
            "note": f"without: {bare:.2f} s; compared with the log by each survivor: "
            + ", ".join(f"{count:,} entries in {seconds:.2f} s" for count, seconds in compared)
            + f"; longest {longest:.2f} s",
        }
    ]


def _killed(entries: int, *, log: bool) -> tuple[float, list[tuple[int, float]]]:
    """Seconds, and of each settlement: entries and seconds."""

    def maps(endpoint: str) -> Mapping[str, Any]:
        return {"default": logged_map(endpoint, {"settle-timeout-ms": "120000"}) if log else {}}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Cluster(folder, compile_java(folder), maps, options=("-Xmx1g",), durability="os") as cluster:
            cluster.start(3)
            orders = cluster.client().get_map("orders").blocking()
            with ThreadPoolExecutor(4) as callers:
                batches = [range(first, min(entries, first + BATCH)) for first in range(0, entries, BATCH)]
                list(callers.map(lambda keys: orders.put_all(dict.fromkeys(keys, VALUE)), batches))
            cluster.wait_safe(3)
            cluster.members[2].kill()
            began = time.monotonic()
            with ThreadPoolExecutor(16) as callers:
                list(callers.map(lambda key: _get(orders, key), range(0, entries, max(1, entries // PROBES))))
            seconds = time.monotonic() - began
            found = [SETTLED.findall(member.log.read_text()) for member in cluster.members[:2]]
            return seconds, [
                (sum(int(count.replace(",", "")) for count, _ in each), sum(int(ms.replace(",", "")) for _, ms in each) / 1000) for each in found
            ]


def _get(orders: Any, key: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            assert orders.get(key) == VALUE
            return
        except HazelcastError:
            if time.monotonic() > deadline:
                raise
