"""What reads of a map cost compared with a dict that has the same entries: in turns, in one
process, as medians of processor time."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import imap_wal

VALUE = "v" * 100
GOALS = {"get": 4.0, "in": 2.5, "iteration of items": 5.0}
"""At most so many times the cost in a dict."""


def got(entries: Mapping[str, str], keys: list[str]) -> None:
    get = entries.get
    for key in keys:
        get(key)


def contained(entries: Mapping[str, str], keys: list[str]) -> None:
    for key in keys:
        key in entries  # noqa: B015


def iterated(entries: Mapping[str, str], keys: list[str]) -> None:
    for _ in entries.items():
        pass


READS: Mapping[str, Callable[[Mapping[str, str], list[str]], None]] = dict(
    zip(GOALS, (got, contained, iterated), strict=True)
)


def run(entries: int, rounds: int) -> list[dict[str, Any]]:
    costs: dict[tuple[str, str], list[float]] = {}
    keys = [f"key{number:09d}" for number in range(entries)]
    with (
        tempfile.TemporaryDirectory() as folder,
        imap_wal.open(folder, durability="os") as store,
    ):
        orders = store.map("m")
        orders.update(dict.fromkeys(keys, VALUE))
        for _ in range(rounds):
            for name, read in READS.items():
                for kind, content in (("map", orders), ("dict", dict(orders.items()))):
                    start = time.process_time_ns()
                    read(content, keys)
                    spent = (time.process_time_ns() - start) / entries
                    costs.setdefault((name, kind), []).append(spent)
    return [row(name, costs[name, "map"], costs[name, "dict"]) for name in READS]


def row(name: str, own: list[float], peer: list[float]) -> dict[str, Any]:
    return {
        "measurement": f"{name}: a map",
        "median": round(statistics.median(own)),
        "least": round(min(own)),
        "most": round(max(own)),
        "unit": "ns of processor time",
        "ratio": round(statistics.median(map(lambda a, b: a / b, own, peer)), 2),
        "to": "a dict",
        "target": GOALS[name],
        "at_most": True,
    }
