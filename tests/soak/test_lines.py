"""A line that grows is found; one that is level or warms up is not."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from tests.soak import report
from tests.soak.lines import QUANTITIES, Line, drifts, judged
from tests.soak.pictures import picture

MIB = 1 << 20


def line(quantity: str, *values: float, name: str = "agent 1") -> Line:
    return Line(quantity, name, [(60.0 * number, value) for number, value in enumerate(values)])


@pytest.mark.parametrize(
    ("quantity", "start", "step"), [("memory", 100 * MIB, 5 * MIB), ("files", 40, 2)]
)
def test_a_line_that_grows_is_found(quantity: str, start: float, step: float) -> None:
    growing = line(quantity, *(start + step * number for number in range(40)))
    (drift,) = drifts([growing], 600)
    assert drift.after > drift.before
    assert QUANTITIES[quantity].title in str(drift)


def test_a_level_line_and_a_warm_up_are_flat() -> None:
    level = line("memory", *[100 * MIB + number % 3 * MIB for number in range(40)])
    warm = line("memory", *[number * 20 * MIB for number in range(10)], *[200 * MIB] * 30)
    assert drifts([level, warm], 600) == []
    assert judged([level, warm], 600) == 2


def test_short_lines_are_not_judged() -> None:
    few = line("files", 1, 1000)
    short = line("files", *range(0, 4000, 100))
    assert drifts([few, short], 3600) == []
    assert judged([few, short], 3600) == 0


def test_a_picture_has_each_line_and_its_name() -> None:
    """The names are escaped, and the picture is valid XML."""
    lines = [
        line("memory", *[MIB] * 1000),
        line("disk", 0, 5 * MIB, name="log"),
        line("p99", 1.5, 2.5, name="<changes>"),
    ]
    drawn = ET.fromstring(picture(lines))
    svg = "{http://www.w3.org/2000/svg}"
    found = drawn.findall(f"{svg}polyline")
    assert [each.findtext(f"{svg}title") for each in found] == ["agent 1", "log", "<changes>"]
    assert len(found[0].attrib["points"].split()) <= 300


def test_the_page_shows_what_the_run_found() -> None:
    lines = [line("memory", *[100 * MIB] * 20), line("memory", *[1.0] * 20, name="member 2")]
    result = {
        "commit": "abc",
        "seed": 7,
        "minutes": 90.0,
        "episodes": {"under-load": 4, "kill-agent": 2},
        "acknowledged": 12345,
        "findings": {"kill-agent: history": 1},
        "judged": 2,
        "drifts": ["agent 1: memory of each process: from 1 to 2 MiB"],
        "lines": [each.as_json() for each in lines],
    }
    shown = report.text(json.loads(json.dumps(result)))
    for part in ("90 minutes", "2 faults", "12,345", "kill-agent: history 1", "from 1 to 2 MiB"):
        assert part in shown
    assert "| memory of each process | agent | 100 MiB | 100 MiB |" in shown
