"""The progress of long work, as events."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from rewrite_cli.console import progress
from tests.cli.conftest import Run
from tests.kit.effort import every
from tests.support import FakeClock


@every(4)
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
    assert reached[-1] == events[-1]["bytes_total"] > 0
    assert "progress" not in run(*named).err


def test_few_events_are_printed_and_the_last_one(run: Run, url: str, tmp_path: Path) -> None:
    """At most one a second, and the end."""
    ended = run("--progress", "json", "backup", url, tmp_path / "b")
    first, last = map(json.loads, ended.err.splitlines())
    assert first["bytes"] < last["bytes"] == last["bytes_total"]
    assert run("--progress", "bar", "ls", url).code == 2


@pytest.mark.parametrize("width", [20, 40, 50, 60, 79, 80, 120])
def test_a_bar_is_one_line(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=width, legacy_windows=False)
    monkeypatch.setattr(progress, "errors", lambda: console)
    with progress.progress() as bar:
        task = bar.add_task("prod/eu/nodes/n1/wal/" + "0" * 60, total=43 * 1024**2)
        bar.update(task, completed=36 * 1024**2)
        lines = console.render_lines(bar.get_renderable(), pad=False)
    assert len(lines) == 1
    text = "".join(segment.text for segment in lines[0])
    assert ("36.0/43.0 MiB" in text) == (width >= progress.NARROW), text


@every(7)
@pytest.mark.parametrize(
    "words", ["export URL", "restore URL", "rewrite URL", "verify URL", "backup URL TMP/b"]
)
def test_a_terminal_shows_a_bar_with_bytes(url: str, tmp_path: Path, words: str) -> None:
    ours, theirs = pty.openpty()
    named = words.replace("URL", url).replace("TMP", str(tmp_path)).split()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-m", "rewrite_cli.cli", *named],
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while part := terminal.read(65536):
                shown += part
        assert process.wait(20) == 0, shown
    assert re.search(rb"\d/\d+(\.\d)? (bytes|KiB)", shown), shown
    assert re.search(rb"\d+:\d\d:\d\d|-:--:--", shown), "the time left"


def test_no_total_is_shown_before_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(force_terminal=True, file=io.StringIO(), width=80)
    monkeypatch.setattr(progress, "errors", lambda: terminal)
    with progress.working("reading") as tell:
        tell("looking")
    assert isinstance(terminal.file, io.StringIO)
    shown = terminal.file.getvalue()
    assert "looking" in shown
    assert "bytes" not in shown


def test_rate_and_time_left_are_those_of_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(progress, "SystemClock", lambda: clock)
    monkeypatch.setattr(progress, "mode", lambda: progress.JSON)
    with progress.working("reading") as tell:
        tell(progress.Reached("sorting", 0, 400, "sorting", 0, 4))
        clock.advance(100)
        tell(progress.Reached("sorting", 400, 400, "sorting", 4, 4))
        tell(progress.Reached("merging", 0, 30, "merging", 0, 3))
        clock.advance(2)
        tell(progress.Reached("merging", 10, 30, "merging", 1, 3))
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["step"], each["tasks"], each["tasks_total"]) for each in events] == [
        ("sorting", 0, 4),
        ("sorting", 4, 4),
        ("merging", 0, 3),
        ("merging", 1, 3),
    ]
    assert [each["seconds_left"] for each in events] == [None, 0.0, None, 4.0]
