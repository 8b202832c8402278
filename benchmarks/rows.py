"""Rows of a result that several parts make in the same way."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def compared(
    measurement: str,
    seen: Sequence[float],
    others: Sequence[float],
    to: str,
    note: str,
    unit: str = "sets/s",
) -> dict[str, Any]:
    """Rates, and the median of their ratios to those that were measured alternately with them."""
    ratios = [rate / other for rate, other in zip(seen, others, strict=True)]
    return {
        "measurement": measurement,
        "median": round(statistics.median(seen)),
        "least": round(min(seen)),
        "most": round(max(seen)),
        "unit": unit,
        "ratio": round(statistics.median(ratios), 3),
        "to": to,
        "target": None,
        "note": note,
    }
