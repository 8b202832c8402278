"""The form of the Java sources, which no Java linter checks."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 100


def test_no_line_of_java_is_longer_than_100_columns() -> None:
    sources = [*ROOT.glob("hazelcast_plugin/src/**/*.java"), *ROOT.glob("tests/**/*.java")]
    assert sources
    assert [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"
        for path in sources
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > WIDTH
    ] == []
