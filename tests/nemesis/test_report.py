"""The tables agree with the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.nemesis.report import episodes_of, kept, markdown, plain, rows, totals


def record(name: str, write_s: float, **findings: int) -> dict[str, Any]:
    outcomes = {"acknowledged": 1000, "unknown": 2}
    return {
        "name": name,
        "outcomes": outcomes,
        "findings": findings,
        "stale_reads": 1,
        "write_s": [write_s, 0.1],
        "read_s": [0.5, 0.1],
    }


def test_the_table_has_sums_and_worst_times(tmp_path: Path) -> None:
    """The time of Hazelcast alone is in brackets."""
    lines = [
        {
            "baseline": False,
            "episodes": [record("split", 2.0, restart=3), record("kill-member", 1.0)],
        },
        {"baseline": False, "episodes": [record("split", 5.0, restart=1)]},
        {"baseline": True, "episodes": [record("split", 4.0)]},
    ]
    path = tmp_path / "nemesis.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = kept(path)
    table = list(
        rows(totals(episodes_of(read, baseline=False)), totals(episodes_of(read, baseline=True)))
    )
    assert markdown(table).splitlines()[2:] == [
        "| kill-member | 1 | 1,000 | 0 | 2 | none | 1 | 1.0 | 0.5 |",
        "| split | 2 | 2,000 | 0 | 4 | restart 4 | 2 | 5.0 (4.0) | 0.5 (0.5) |",
    ]
    assert plain(table).splitlines()[1].split() == [
        "kill-member",
        "1",
        "1,000",
        "0",
        "2",
        "none",
        "1",
        "1.0",
        "0.5",
    ]
    assert kept(tmp_path / "none") == []
