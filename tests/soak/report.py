"""Puts the newest long run on docs/reliability.md: `python -m tests.soak.report`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.cluster.processes import ROOT
from tests.soak.lines import QUANTITIES, Line, Quantity, quarters
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
            "| quantity | of | second quarter | last quarter |",
            "|---|---|---:|---:|",
            *table(lines),
        ]
    )


def table(lines: Sequence[Line]) -> Iterator[str]:
    """For each quantity and kind of process, the least and the greatest median."""
    longest: dict[tuple[str, str], Line] = {}
    for line in lines:
        known = longest.get((line.quantity, line.name))
        if known is None or line.seconds > known.seconds:
            longest[line.quantity, line.name] = line
    medians: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (quantity, name), line in sorted(longest.items(), key=lambda item: item[0][1]):
        if (both := quarters(line)) is not None:
            medians.setdefault((quantity, name.rstrip(" 0123456789")), []).append(both)
    for title, of in QUANTITIES.items():
        for (quantity, kind), pairs in medians.items():
            if quantity == title:
                before, after = (_span(of, values) for values in zip(*pairs, strict=True))
                yield f"| {of.title} | {kind} | {before} | {after} |"


def _span(of: Quantity, values: Sequence[float]) -> str:
    """As `3 MiB`, or `3–4 MiB`."""
    ends = dict.fromkeys(f"{value / of.scale:,.0f}" for value in (min(values), max(values)))
    return f"{'–'.join(ends)} {of.unit}".rstrip()


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
