"""Puts measured numbers into the documentation: `python -m benchmarks.publish
out/bench/result.json …`. If several results have a part, the last one counts.

Writes `benchmarks/measured.json`, the charts in `docs/images/` and the tables of
`docs/performance.md` and `docs/scale.md`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import charts

ROOT = Path(__file__).parents[1]
MEASURED, IMAGES = ROOT / "benchmarks/measured.json", ROOT / "docs/images"
PAGES = ROOT / "docs/performance.md", ROOT / "docs/scale.md"
PART = re.compile(r"(<!-- measured: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
RUN = re.compile(r"(<!-- run -->\n).*?(\n<!-- end of run -->)", re.DOTALL)
COSTS = re.compile(r"(<!-- costs -->\n).*?(<!-- end of costs -->)", re.DOTALL)
ENTRIES = 10_000_000_000
LOAD = "member set, (?P<row>[^,:]*), (?P<column>[^,]*)"
WIDE = {
    "copies": LOAD,
    "endpoints": LOAD,
    "growth": "(?P<row>[^:]*): (?P<column>.*)",
    "member": LOAD,
    "open": "(?P<row>[^:]*): (?P<column>.*)",
    "pipeline": "[^:]*: (?P<row>.*?)(?:, (?P<column>processor time|memory of all processes))?",
    "sizing": "(?P<column>[^:]*): (?P<row>.*)",
    "year": "(?P<row>.*), (?P<column>a rewrite at .*)",
}
"""Parts whose table has a column for each value of the second half of a measurement's name."""


def section(part: str, rows: Sequence[dict[str, Any]]) -> str:
    """The charts and the table of one part as Markdown; a sentence if it was not measured."""
    measured = [row for row in rows if row["part"] == part]
    if not measured:
        return "\nNot measured in this run.\n"
    lines = [
        line
        for name in charts(measured)
        for line in ("", f"![Chart: {part}](images/bench-{name}.svg)")
    ]
    lines += ["", *(wide(measured, WIDE[part]) if part in WIDE else long(measured))]
    lines += [f"\nOn another machine: {name}." for name in elsewhere(measured)]
    return "\n".join([*lines, ""])


def long(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table with a line for each measurement."""
    yield "| measurement | median | range | ratio | to |"
    yield "|---|---:|---|---:|---|"
    for row in rows:
        spread = f"{row['least']:,}–{row['most']:,}" if "least" in row else ""
        compared = "|" if row["ratio"] == 1 else f"{row['ratio']:g} | {row['to']}"
        yield f"| {row['measurement']} | {row['median']:,} {row['unit']} | {spread} | {compared} |"


def wide(rows: Sequence[dict[str, Any]], name: str) -> Iterator[str]:
    """The medians, in a table with several columns. Below it, measurements with another name."""
    one_unit = rows[0]["unit"] if len({row["unit"] for row in rows}) == 1 else ""
    cells: dict[str, dict[str, list[str]]] = {}
    others = []
    for row in rows:
        median = f"{row['median']:,}" + ("" if one_unit else f" {row['unit'].split()[0]}")
        if (matched := re.fullmatch(name, row["measurement"])) is None:
            others.append(f"\n{row['measurement']}: {median}.")
        else:
            line = cells.setdefault(matched["row"], {})
            line.setdefault(matched["column"] or "median", []).append(median)
    columns = list(dict.fromkeys(column for line in cells.values() for column in line))
    yield f"| {' | '.join([one_unit, *columns])} |"
    yield f"|---|{'---:|' * len(columns)}"
    for label, line in cells.items():
        yield f"| {' | '.join([label, *(', '.join(line.get(key, [])) for key in columns)])} |"
    yield from others


def elsewhere(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The machines of rows that were not measured on the machine of the others."""
    return sorted({row["machine"] for row in rows if "machine" in row})


def filled(page: str, measured: Mapping[str, Any]) -> str:
    """The page with the new content of each of its parts."""
    page = PART.sub(
        lambda found: f"{found[1]}{section(found[2], measured['rows'])}\n{found[3]}", page
    )
    run = (
        f"The machine: {measured['machine']}{', `--quick`' if measured['quick'] else ''}."
        if measured["rows"]
        else "No run is published yet."
    )
    page = COSTS.sub(lambda found: f"{found[1]}\n{costs(measured['rows'])}\n{found[2]}", page)
    return RUN.sub(lambda found: f"{found[1]}{run}{found[2]}", page)


def costs(rows: Sequence[dict[str, Any]]) -> str:
    """What `ENTRIES` cost, by the processor time of each engine and size of the pipeline."""
    lines = [
        "| measured | for 1,000,000 records | for 10,000,000,000 | with 100 processors |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        millions, _, engine = row["measurement"].partition(" M records: ")
        name = engine.removesuffix(", processor time")
        if row["part"] == "pipeline" and engine.endswith(", processor time"):
            each = row["median"] / float(millions)
            hours = each * ENTRIES / 1e6 / 3600
            lines.append(
                f"| {name}, {millions} M records | {each:.1f} s | {hours:.1f} hours | "
                f"{60 * hours / 100:.0f} minutes |"
            )
    return "\n".join(lines) + "\n" if len(lines) > 2 else "Not measured yet.\n"


def images(rows: Sequence[dict[str, Any]]) -> dict[Path, str]:
    return {IMAGES / f"bench-{name}.svg": drawing for name, drawing in charts(rows).items()}


def combined(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest rows of each part. A row names its machine if it is not that of the first result.

    Raises:
        ValueError: some of them were measured with `--quick`.
    """
    first = results[0]
    if len({each["quick"] for each in results}) != 1:
        raise ValueError("some of these results are of --quick, others are not")
    parts: dict[str, list[dict[str, Any]]] = {}
    for each in results:
        other = {} if each["machine"] == first["machine"] else {"machine": each["machine"]}
        for name in dict.fromkeys(row["part"] for row in each["rows"]):
            parts[name] = [{**other, **row} for row in each["rows"] if row["part"] == name]
    return {**first, "rows": [row for rows in parts.values() for row in rows]}


def main(*results: Path) -> None:
    measured = combined([json.loads(each.read_text(encoding="utf-8")) for each in results])
    MEASURED.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for old in IMAGES.glob("bench-*.svg"):
        old.unlink()
    for path, drawing in images(measured["rows"]).items():
        path.write_text(drawing, encoding="utf-8")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), measured), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
