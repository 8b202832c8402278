"""The record of all runs, and the tables made of it. `python -m tests.nemesis.report` prints the
table of docs/reliability.md."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.processes import ROOT
from tests.nemesis.episodes import EPISODES

RECORD = ROOT / "out" / "nemesis.jsonl"
Totals = Mapping[str, Any]


def commit() -> str:
    run = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout.strip()


def keep(line: Mapping[str, Any]) -> None:
    RECORD.parent.mkdir(exist_ok=True)
    with RECORD.open("a") as file:
        file.write(json.dumps(line) + "\n")


def kept(record: Path = RECORD) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def totals(episodes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Sums, and the longest times of the worst key, by kind of episode."""
    found: dict[str, dict[str, Any]] = {}
    for each in episodes:
        total = found.setdefault(
            each["name"],
            {
                "times": 0,
                "outcomes": Counter(),
                "findings": Counter(),
                "stale": 0,
                "write_s": 0.0,
                "read_s": 0.0,
            },
        )
        total["times"] += 1
        total["outcomes"].update(each["outcomes"])
        total["findings"].update(each["findings"])
        total["stale"] += each["stale_reads"]
        for name in ("write_s", "read_s"):
            total[name] = max(total[name], each[name][0])
    return {name: found[name] for name in EPISODES if name in found}


def episodes_of(lines: Sequence[Mapping[str, Any]], *, baseline: bool) -> list[dict[str, Any]]:
    return [each for line in lines if line["baseline"] == baseline for each in line["episodes"]]


def rows(ours: Mapping[str, Totals], bare: Mapping[str, Totals]) -> Iterator[list[str]]:
    yield [
        "episode",
        "times",
        "acknowledged",
        "refused",
        "unknown",
        "findings",
        "stale reads",
        "no write for, s",
        "no read for, s",
    ]
    for name, total in ours.items():
        outcomes = [
            f"{total['outcomes'][outcome]:,}" for outcome in ("acknowledged", "refused", "unknown")
        ]
        findings = (
            ", ".join(f"{judgement} {count}" for judgement, count in total["findings"].items())
            or "none"
        )
        times = [
            _beside(total[each], bare.get(name, {}).get(each)) for each in ("write_s", "read_s")
        ]
        yield [name, str(total["times"]), *outcomes, findings, str(total["stale"]), *times]


def _beside(measured: float, bare: float | None) -> str:
    """In brackets Hazelcast without a map store."""
    return f"{measured:.1f}" if bare is None else f"{measured:.1f} ({bare:.1f})"


def plain(table: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def markdown(table: Sequence[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([head, "|" + "---|" * len(table[0]), *body])


def main() -> None:
    """Prints the table for the newest commit that was run, with all baselines."""
    lines = kept()
    newest = next(line["commit"] for line in reversed(lines) if not line["baseline"])
    those = [line for line in lines if line["commit"] == newest]
    print(
        f"Commit {newest}, seeds "
        f"{', '.join(str(line['seed']) for line in those if not line['baseline'])}:\n"
    )
    print(
        markdown(
            list(
                rows(
                    totals(episodes_of(those, baseline=False)),
                    totals(episodes_of(lines, baseline=True)),
                )
            )
        )
    )


if __name__ == "__main__":
    main()
