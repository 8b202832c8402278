"""python -m benchmarks [--quick] [embedded] [open] [reads] [encryption] [rewrite] [rewrite-again]
[pipeline] [table] [year] [compaction] [metadata] [restore] [restore-members] [settlement]
[many-maps] [hello-flood] [operations] [member] [endpoints] [sizing] [copies] [shared] [streams]:
prints a table, or JSON with -o json. With --save FOLDER, also writes result.json and a chart of
each part there."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import (
    compaction,
    copies,
    embedded,
    encryption,
    endpoints,
    hello_flood,
    many_maps,
    member,
    metadata,
    open_store,
    operations,
    pipeline,
    reads,
    restore_members,
    rewrite,
    settlement,
    shared,
    sizing,
    streams,
    table,
    year,
)
from benchmarks.plots import charts

Row = dict[str, Any]


def parts(quick: bool) -> dict[str, Callable[[], list[Row]]]:
    """The measurements by name."""
    return {
        "embedded": lambda: embedded.run(3 if quick else 7, quick),
        "open": lambda: open_store.run(200_000 if quick else 1_000_000, 1 if quick else 5),
        "reads": lambda: reads.run(50_000 if quick else 1_000_000, 5),
        "encryption": lambda: encryption.run(4 if quick else 8, quick),
        "rewrite": lambda: rewrite.run(
            1_000_000 if quick else 10_000_000, 200_000, judged=not quick
        ),
        "rewrite-again": lambda: rewrite.again(200_000 if quick else 2_000_000, judged=not quick),
        "pipeline": lambda: pipeline.run(
            200_000 if quick else 5_000_000, 1 if quick else 3, judged=not quick
        ),
        "table": lambda: table.run(
            200_000 if quick else 2_000_000, 1 if quick else 3, judged=not quick
        ),
        "year": year.run,
        "compaction": lambda: compaction.run(2 if quick else 5, 500_000 if quick else 5_000_000),
        "metadata": lambda: metadata.run(quick),
        "restore": lambda: member.restore(1 if quick else 3, 200_000 if quick else 1_000_000),
        "restore-members": lambda: restore_members.run(200_000 if quick else 1_000_000),
        "settlement": lambda: settlement.run(100_000 if quick else 1_000_000),
        "many-maps": lambda: many_maps.run(500 if quick else 5000),
        "hello-flood": lambda: hello_flood.run(3 if quick else 10),
        "operations": lambda: operations.run(11 if quick else 101),
        "member": lambda: member.sets(1 if quick else 3, 5 if quick else 10),
        "endpoints": lambda: endpoints.run(1 if quick else 3, 3 if quick else 10),
        "sizing": lambda: sizing.run(1 if quick else 3, 3 if quick else 10),
        "copies": lambda: copies.run(1 if quick else 3, 3 if quick else 10),
        "shared": lambda: shared.run(1 if quick else 3, quick),
        "streams": lambda: streams.run(1 if quick else 3, quick),
    }


def machine() -> str:
    """The machine of the measurement."""
    return (
        f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} "
        f"processors, Python {platform.python_version()}"
    )


def verdict(row: Row) -> str:
    """Whether the ratio meets its target."""
    if row.get("target") is None:
        return ""
    met = row["ratio"] <= row["target"] if row.get("at_most") else row["ratio"] >= row["target"]
    return (
        f"{'at most' if row.get('at_most') else 'at least'} {row['target']:g}: "
        f"{'met' if met else 'MISSED'}"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    arguments.add_argument(
        "parts",
        nargs="*",
        help="of those above; default all",
    )
    arguments.add_argument("--quick", action="store_true", help="shorter, with smaller data")
    arguments.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments.add_argument(
        "--save", type=Path, metavar="FOLDER", help="also write result.json and charts (SVG) there"
    )
    options = arguments.parse_args()
    known = parts(options.quick)
    unknown = set(options.parts) - set(known)
    if unknown:
        arguments.error(f"unknown part {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    rows: list[Row] = []
    progress = Console(stderr=True)
    for name, measure in known.items():
        if not options.parts or name in options.parts:
            progress.print(f"measuring {name} …")
            rows += [{"part": name, **row} for row in measure()]
    result = json.dumps({"machine": machine(), "quick": options.quick, "rows": rows}, indent=1)
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
        (options.save / "result.json").write_text(result, encoding="utf-8")
        for name, drawing in charts(rows).items():
            (options.save / f"{name}.svg").write_text(drawing, encoding="utf-8")
    if options.output == "json":
        print(result)
        return
    shown = Table(title="imap-wal, ratios within one run" + (" (quick)" if options.quick else ""))
    for column in ("measurement", "median", "range", "unit", "ratio", "to", "target", "note"):
        shown.add_column(column, justify="right" if column in ("median", "ratio") else "left")
    for row in rows:
        spread = f"{row['least']:,} … {row['most']:,}" if "least" in row else ""
        shown.add_row(
            row["measurement"],
            f"{row['median']:,}",
            spread,
            row["unit"],
            f"{row['ratio']:g}",
            row["to"],
            verdict(row),
            row.get("note", ""),
        )
    Console(width=200).print(shown)


if __name__ == "__main__":
    main()
