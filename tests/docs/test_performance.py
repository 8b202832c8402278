"""The numbers on the page about performance are the measured ones."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks import publish
from benchmarks.plots import charts


def test_the_page_shows_only_the_measured_run() -> None:
    """Every table and every chart is generated from it."""
    measured = json.loads(publish.MEASURED.read_text(encoding="utf-8"))
    for page in publish.PAGES:
        text = page.read_text(encoding="utf-8")
        assert publish.filled(text, measured) == text, (
            "python -m benchmarks.publish benchmarks/measured.json"
        )
    drawn = {path: path.read_text(encoding="utf-8") for path in publish.IMAGES.glob("bench-*.svg")}
    assert drawn == publish.images(measured["rows"]), (
        "python -m benchmarks.publish benchmarks/measured.json"
    )


def test_the_newest_result_of_each_part_is_published() -> None:
    def result(machine: str, *, quick: bool = False, **parts: int) -> dict[str, Any]:
        rows = [{"part": name, "median": median} for name, median in parts.items()]
        return {"machine": machine, "quick": quick, "rows": rows}

    found = publish.combined([result("a", rewrite=1, member=2), result("a", rewrite=3)])
    assert found == result("a", rewrite=3, member=2)
    found = publish.combined([result("a", rewrite=1), result("b", member=2)])
    assert publish.elsewhere(found["rows"]) == ["b"]
    with pytest.raises(ValueError, match="--quick"):
        publish.combined([result("a", rewrite=1), result("a", quick=True, member=2)])


def test_costs_are_computed_from_measured_processor_time() -> None:
    def row(measurement: str, part: str = "pipeline") -> dict[str, Any]:
        return {"part": part, "measurement": measurement, "median": 36.0}

    table = publish.costs(
        [
            row("2 M records: ours, processor time"),
            row("2 M records: ours"),
            row("2 M records: ours, processor time", "another"),
        ]
    )
    assert table.splitlines()[2:] == ["| ours, 2 M records | 18.0 s | 50.0 hours | 30 minutes |"]


def test_a_chart_names_every_measurement() -> None:
    """Each measurement has a bar."""
    rows = [
        {
            "part": "embedded",
            "measurement": "threads: 1",
            "median": 1000,
            "least": 900,
            "most": 1100,
            "unit": "records/s",
            "ratio": 0.5,
            "to": "SQLite",
        },
        {
            "part": "embedded",
            "measurement": "SQLite <WAL>",
            "median": 2000,
            "unit": "records/s",
            "ratio": 1.0,
            "to": "SQLite",
        },
    ]
    drawing = ET.fromstring(charts(rows)["embedded"])
    texts = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    bars = [float(bar.attrib["width"]) for bar in drawing.iter("{http://www.w3.org/2000/svg}rect")]
    assert texts == ["embedded, records/s", "threads: 1", "1,000", "SQLite <WAL>", "2,000"]
    assert bars == [265, 530]
