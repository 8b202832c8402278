"""The numbers on the page of performance are those that were measured."""

from __future__ import annotations

import json

from benchmarks import publish


def test_every_table_and_chart_of_the_page_is_made_of_the_measured_run() -> None:
    rows = json.loads(publish.MEASURED.read_text(encoding="utf-8"))["rows"]
    page = publish.PAGE.read_text(encoding="utf-8")
    assert publish.filled(page, rows) == page, "python -m benchmarks.publish benchmarks/measured.json"
    drawn = publish.images(rows)
    assert {path: path.read_text(encoding="utf-8") for path in publish.IMAGES.glob("bench-*.svg")} == drawn
    for part in (found[2] for found in publish.TABLE.finditer(page)):
        assert any(row["part"] == part for row in rows), f"{part} was not measured"
