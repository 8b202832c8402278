"""Puts the newest long run on docs/reliability.md: `python -m tests.soak.report`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.cluster.processes import ROOT
from tests.soak.lines import QUANTITIES, Line, quarters
from tests.soak.pictures import picture

PAGE = ROOT / "docs" / "reliability.md"
PICTURE = ROOT / "docs" / "images" / "soak.svg"
BEGIN, END = "<!-- soak -->", "<!-- end of soak -->"


def text(result: Mapping[str, Any]) -> str:
    """The part of the page, without the markers."""
    faults = sum(result["episodes"].values()) - result["episodes"].get("under-load", 0)
    findings = ", ".join(f"{kind} {count}" for kind, count in result["findings"].items())
    lines = [Line.of_json(each) for each in result["lines"]]
    drifts = "; ".join(result["drifts"])
    return "\n".join(
        [
            (
                f"Commit {result['commit']}, seed {result['seed']}: {result['minutes']:,.0f} "
                f"minutes, {faults} faults and maintenance runs,"
            ),
            f"{result['acknowledged']:,} acknowledged operations. Findings: {findings or 'none'}.",
            f"Lines that are not flat, of {result['judged']}: {drifts or 'none'}.",
            *([f"The run ended early: {ended}"] if (ended := result.get("failure")) else []),
            "",
            "![Memory, open files, threads, disk and latency of the run](images/soak.svg)",
            "",
            "| quantity | line | second quarter | last quarter |",
            "|---|---|---:|---:|",
            *table(lines),
        ]
    )


def table(lines: Sequence[Line]) -> Iterator[str]:
    """For each quantity and name, the line that lived longest."""
    longest: dict[tuple[str, str], Line] = {}
    for line in lines:
        known = longest.get((line.quantity, line.name))
        if known is None or line.seconds > known.seconds:
            longest[line.quantity, line.name] = line
    order = list(QUANTITIES)
    for (quantity, name), line in sorted(
        longest.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
    ):
        of, both = QUANTITIES[quantity], quarters(line)
        if both is not None:
            before, after = (f"{value / of.scale:,.0f} {of.unit}".rstrip() for value in both)
            yield f"| {of.title} | {name} | {before} | {after} |"


def main() -> None:
    result = json.loads((ROOT / "out" / "soak.json").read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{text(result)}\n{END}{tail}", encoding="utf-8")
    lines = [Line.of_json(each) for each in result["lines"]]
    PICTURE.write_text(picture(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
