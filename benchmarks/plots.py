"""Bar charts of measurements as SVG, legible in light and dark mode. They need no library: a chart
is rectangles and texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

Row = dict[str, Any]

WIDTH, MARGIN, BARS, STEP, TOP = 640, 12, 530, 44, 40
"""In pixels: width of the picture, of the space on its left, and of the longest bar; distance of
two bars, each with its label above it; height of the head."""

STYLE = """text { font: 14px system-ui, sans-serif; fill: #1b2a30; }
    .title { font-size: 16px; }
    .ours { fill: #00897b; } .other { fill: #8a9aa1; }
    .range { stroke: #1b2a30; stroke-width: 1.5; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6eef0; } .ours { fill: #35b3a4; }
      .other { fill: #7f8f96; } .range { stroke: #e6eef0; }
    }"""
OTHERS = (
    "bare loop",
    "SQLite",
    "no map store",
    "no-op",
    "SeaTunnel",
    "DuckDB",
    "Spark SQL",
    "made-up loader",
    "without a map store",
)
"""Labels with one of these are not imap-wal's and have another colour."""


def _value(row: Row, name: str) -> float:
    """The median, if there was only one run."""
    found: float = row[name if name in row else "median"]
    return found


def chart(title: str, rows: Sequence[Row]) -> str:
    """One bar for each row, as long as its median, with a line from its least to its most."""
    longest = max(_value(row, "most") for row in rows)
    height = TOP + STEP * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '  # noqa: ISC004
        f'width="{WIDTH}" height="{height}" role="img">',
        f"  <style>\n    {STYLE}\n  </style>",
        f'  <text class="title" x="{WIDTH / 2:g}" y="24" '  # noqa: ISC004
        f'text-anchor="middle">{escape(title)}</text>',
    ]
    for number, row in enumerate(rows):
        y = TOP + STEP * number
        length, least, most = (
            BARS * _value(row, name) / longest for name in ("median", "least", "most")
        )
        kind = "other" if any(name in row["measurement"] for name in OTHERS) else "ours"
        parts += [
            f'  <text x="{MARGIN}" y="{y + 15}">{escape(row["measurement"])}</text>',
            f'  <rect class="{kind}" x="{MARGIN}" y="{y + 20}" width="{max(length, 1):.1f}" '  # noqa: ISC004
            'height="14" rx="2"/>',
            f'  <path class="range" d="M{MARGIN + least:.1f} {y + 27}H{MARGIN + most:.1f}"/>',
            f'  <text x="{MARGIN + most + 8:.1f}" y="{y + 32}">{row["median"]:,}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def charts(rows: Sequence[Row]) -> dict[str, str]:
    """The charts of a run by name: one for each part and unit that has two bars or more."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["part"], row["unit"]), []).append(row)
    drawn: dict[str, str] = {}
    for (part, unit), group in groups.items():
        if len(group) > 1:
            name = part if part not in drawn else f"{part}-{re.sub(r'[^a-zA-Z0-9]+', '-', unit)}"
            drawn[name] = chart(
                f"{part}, {unit}",
                [{**row, "measurement": short(row["measurement"])} for row in group],
            )
    return drawn


def short(label: str) -> str:
    """A label without the text that the title already has."""
    for prefix in ("member set, ", "encrypted: "):
        label = label.removeprefix(prefix)
    return label
