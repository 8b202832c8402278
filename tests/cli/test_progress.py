"""How far long work is, as events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewrite_cli.console import progress
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    "words",
    ["export URL", "restore URL", "rewrite URL", "verify URL", "archive URL", "backup URL TMP/b"],
)
def test_long_work_prints_events_in_bytes(
    run: Run, url: str, tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    named = words.replace("URL", url).replace("TMP", str(tmp_path)).split()
    ended = run("--progress", "json", *named)
    assert ended.code == 0, ended.err
    events = [json.loads(line) for line in ended.err.splitlines() if line.startswith("{")]
    assert events
    for event in events:
        assert set(event) == {
            "event",
            "what",
            "bytes",
            "bytes_total",
            "bytes_per_second",
            "seconds_left",
        }
        assert 0 <= event["bytes"] <= event["bytes_total"]
    reached = [event["bytes"] for event in events]
    assert reached == sorted(reached)
    assert "progress" not in run(*named).err


def test_few_events_are_printed_and_the_last_one(run: Run, url: str, tmp_path: Path) -> None:
    """At most one a second, and the end."""
    ended = run("--progress", "json", "backup", url, tmp_path / "b")
    first, last = map(json.loads, ended.err.splitlines())
    assert first["bytes"] < last["bytes"] == last["bytes_total"]
    assert run("--progress", "bar", "ls", url).code == 2
