"""Line charts of a long run as one SVG, legible in light and dark mode."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tests.soak.lines import QUANTITIES, Line, Quantity

WIDTH, LEFT, RIGHT, HEAD, PANEL, GAP = 640, 80, 16, 26, 110, 34
"""In pixels: width; room for numbers left and right; height of a title and of a chart; distance."""
POINTS_MAX = 300
"""The most points of a line on a picture. Of more points, each that is drawn is the highest of
some."""
STYLE = """text { font: 13px system-ui, sans-serif; fill: #1b2a30; }
    .title { font-size: 14px; }
    .number { text-anchor: end; }
    .frame { fill: none; stroke: #8a9aa1; stroke-width: 1; }
    polyline { fill: none; stroke-width: 1.3; }
    .agent { stroke: #00897b; } .member { stroke: #c0682a; } .other { stroke: #4a6fa5; }
    .agent-text { fill: #00897b; } .member-text { fill: #c0682a; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6eef0; } .agent { stroke: #35b3a4; } .member { stroke: #e0955f; }
      .other { stroke: #86a8d8; } .agent-text { fill: #35b3a4; } .member-text { fill: #e0955f; }
    }"""


def picture(lines: Sequence[Line]) -> str:
    """A chart for each quantity, one below the other, with the same time from left to right."""
    present = [of for of in QUANTITIES.values() if any(each.quantity == of.name for each in lines)]
    longest = max((line.points[-1][0] for line in lines if line.points), default=1.0)
    height = GAP + len(present) * (HEAD + PANEL + GAP)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">'
        ),
        f"  <style>\n    {STYLE}\n  </style>",
        (
            f'  <text x="{LEFT}" y="18"><tspan class="agent-text">agents</tspan> · '
            f'<tspan class="member-text">members</tspan> · {longest / 60:,.0f} minutes</text>'
        ),
    ]
    for number, of in enumerate(present):
        own = [each for each in lines if each.quantity == of.name and each.points]
        parts += _panel(of, own, GAP + number * (HEAD + PANEL + GAP), longest)
    return "\n".join([*parts, "</svg>", ""])


def _panel(of: Quantity, lines: Sequence[Line], top: int, longest: float) -> list[str]:
    most = max((value for line in lines for _, value in line.points), default=0) or 1
    base, wide = top + HEAD + PANEL, WIDTH - LEFT - RIGHT
    parts = [
        f'  <text class="title" x="{LEFT}" y="{top + 16}">{escape(of.title)}</text>',
        f'  <rect class="frame" x="{LEFT}" y="{top + HEAD}" width="{wide}" height="{PANEL}"/>',
        f'  <text class="number" x="{LEFT - 6}" y="{top + HEAD + 10}">'
        f"{most / of.scale:,.0f} {of.unit}".rstrip()
        + "</text>",
        f'  <text class="number" x="{LEFT - 6}" y="{base}">0</text>',
    ]
    for line in lines:
        kind = line.name.split()[0]
        points = " ".join(
            f"{LEFT + wide * at / longest:.1f},{base - PANEL * value / most:.1f}"
            for at, value in _fewer(line.points)
        )
        parts.append(
            f'  <polyline class="{kind if kind in ("agent", "member") else "other"}" '
            f'points="{points}"><title>{escape(line.name)}</title></polyline>'
        )
    return parts


def _fewer(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(points) // POINTS_MAX)
    return [
        max(points[start : start + step], key=lambda point: point[1])
        for start in range(0, len(points), step or 1)
    ]
