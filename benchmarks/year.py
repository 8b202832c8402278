"""What rewrites write in a year, simulated: a map whose ranges are written again when a key of them
has changed (`imap_wal.rewrite.ranges`). No file is written: a range is a number.
"""

from __future__ import annotations

from itertools import product
from typing import Any, TypeAlias

import numpy as np

KEYS = 10_000_000_000
ENTRY_BYTES = 1_000
RANGE_BYTES = 256 * 2**20
"""The size of files of a large map (docs/decisions/rewrites.md)."""
RANGES = KEYS * ENTRY_BYTES // RANGE_BYTES
CHANGES = 365 * 1_000_000_000
"""In a year."""
TOP = 1_000_000
"""Ranks of Zipf's law that are placed one by one; all others are spread evenly."""
RECENT = 0.001
"""A change has one of the newest keys: on average so far from the end, as a part of all keys."""
SEED = 7
UNIFORM, ZIPF, NEWEST = "any key", "keys by Zipf's law", "mostly the newest keys"
Shares: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def shares(law: str, chance: np.random.Generator) -> Shares:
    """Range → probability that a change has a key of it. Zipf's law with exponent 0.99, its keys in
    any order; the newest keys are next to each other, as keys that begin with a time are."""
    found: Shares
    if law == NEWEST:
        found = np.exp(-np.arange(RANGES) / (RECENT * RANGES))
    elif law == ZIPF:
        top = np.arange(1, TOP + 1) ** -0.99
        rest = (KEYS**0.01 - TOP**0.01) / 0.01
        found = np.full(RANGES, rest / RANGES)
        np.add.at(found, chance.integers(0, RANGES, TOP), top)
    else:
        found = np.ones(RANGES)
    return found / found.sum()


def written(law: str, percentage: float) -> float:
    """Bytes that all rewrites of a year write, for each byte of a change. A rewrite begins when the
    changes since the last one have this percentage of the bytes of the map."""
    chance = np.random.default_rng(SEED)
    between = KEYS * percentage / 100
    untouched = np.exp(-between * shares(law, chance))
    rewrites = round(CHANGES / between)
    ranges = sum(int(np.count_nonzero(chance.random(RANGES) >= untouched)) for _ in range(rewrites))
    return ranges * RANGE_BYTES / (rewrites * between * ENTRY_BYTES)


def run() -> list[dict[str, Any]]:
    """A row for each law and percentage."""
    return [
        {
            "measurement": f"{law}, a rewrite at {percentage:g} %",
            "median": round(ratio := written(law, percentage), 3),
            "unit": "bytes written for each byte of a change",
            "ratio": round(ratio, 3),
            "to": "the changes",
            "target": None,
            "note": f"{CHANGES:,} changes of {KEYS:,} keys in {RANGES:,} ranges",
        }
        for law, percentage in product((UNIFORM, ZIPF, NEWEST), (1, 10, 100))
    ]
