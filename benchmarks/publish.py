"""Makes a run's numbers those of the documentation: `python -m benchmarks.publish out/bench/result.json`.

Writes `benchmarks/measured.json`, the charts in `docs/images/` and the tables of `docs/performance.md`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import charts

ROOT = Path(__file__).parents[1]
MEASURED, PAGE, IMAGES = ROOT / "benchmarks/measured.json", ROOT / "docs/performance.md", ROOT / "docs/images"
TABLE = re.compile(r"(<!-- measured: ([\w-]+) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of one part as a Markdown table."""
    lines = ["", "| measurement | median | range | unit | ratio | to |", "|---|---:|---|---|---:|---|"]
    for row in rows:
        spread = f"{row['least']:,} … {row['most']:,}" if "least" in row else ""
        lines.append(f"| {row['measurement']} | {row['median']:,} | {spread} | {row['unit']} | {row['ratio']:g} | {row['to']} |")
    return "\n".join([*lines, ""])


def filled(page: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page with each of its tables made anew; a part that was not measured has an empty one."""
    return TABLE.sub(lambda found: found[1] + table([row for row in rows if row["part"] == found[2]]) + found[3], page)


def images(rows: Sequence[dict[str, Any]]) -> dict[Path, str]:
    return {IMAGES / f"bench-{name}.svg": drawing for name, drawing in charts(rows).items()}


def main(result: Path) -> None:
    measured = json.loads(result.read_text(encoding="utf-8"))
    MEASURED.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for old in IMAGES.glob("bench-*.svg"):
        old.unlink()
    for path, drawing in images(measured["rows"]).items():
        path.write_text(drawing, encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), measured["rows"]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
