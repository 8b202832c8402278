"""Shared by the benchmarks with real members: fills a map, and reads from the members' output how
long a comparison with the log took."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.cluster.cluster import Cluster

VALUE = b"v" * 100
BATCH = 10_000
COMPARED = re.compile(
    r'map "orders": \d+ of \d+ partition\(s\) (settled|restored) .*: ([\d,]+) entries '
    r"compared, .* in ([\d,]+) ms"
)


def fill(cluster: Cluster, entries: int) -> Any:
    """Fill the map "orders" with this many entries."""
    orders = cluster.client().get_map("orders").blocking()
    batches = [range(first, min(entries, first + BATCH)) for first in range(0, entries, BATCH)]
    with ThreadPoolExecutor(4) as callers:
        list(callers.map(lambda keys: orders.put_all(dict.fromkeys(keys, VALUE)), batches))
    return orders


def compared(cluster: Cluster, how: str) -> list[tuple[int, float]]:
    """For each running member: the number of compared entries ("settled" or "restored"), and
    seconds."""
    shares = []
    for member in cluster.running:
        found = [
            (_number(count), _number(ms))
            for what, count, ms in COMPARED.findall(member.log.read_text())
            if what == how
        ]
        shares.append((sum(count for count, _ in found), sum(ms for _, ms in found) / 1000))
    return shares


def text(shares: list[tuple[int, float]]) -> str:
    return ", ".join(f"{count:,} entries in {seconds:.2f} s" for count, seconds in shares)


def _number(printed: str) -> int:
    return int(printed.replace(",", ""))
