"""The output outside a terminal, and during a long command."""

from __future__ import annotations

import logging
import subprocess
import sys

import click
import pytest

from rewrite_cli.commands.service import demo
from rewrite_cli.console import output as out
from rewrite_cli.console.progress import progress as progress_bar
from rewrite_cli.demo.embedded import Report
from tests.cli.conftest import Run


def test_piped_rows_are_single_plain_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Outside a terminal, the prose of a row follows it in lines of bounded width."""
    path = "default/embedded/nodes/n1/" + "x" * 150
    rows = [
        (
            "corrupt",
            path,
            386,
            1536,
            "[red] bytes have changed, " * 9 + "and more",
            "bring the\nfile back",
        ),
        ("clean", "short", 1, 20, "", "–"),
    ]
    out.print_table(
        ("status", "file", "offset", "left bytes", "what", "what to do"), rows, title="prod/eu"
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "prod/eu"
    assert lines[1].split() == ["status", "file", "offset", "left", "bytes"]
    assert lines[2] == f"corrupt  {path}     386     1.5 KiB"
    assert lines[-1].split() == ["clean", "short", "1", "20", "B"]
    prose = lines[3:-1]
    assert prose[0].startswith("    what: [red] bytes have changed, [red]")
    assert prose[-1] == "    what to do: bring the\\nfile back"
    assert all(len(line) <= 80 and line.startswith("    ") for line in prose)
    assert all(line == line.rstrip() and line for line in lines)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("maps", [("o",), ("orders", "sessions-of-the-shop"), ("客户" * 6,)])
def test_a_terminal_shows_every_cell_whole(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    maps: tuple[str, ...],
) -> None:
    """A number or a key that is cut at its end looks like another one."""
    columns = ("map", "node", "records", "dead", "live bytes", "public key", "what")
    rows = [
        (name, f"node-{at}", 1_234_567, 999, 1536, "0123456789abcdef" * 2, "it is gone")
        for at, name in enumerate(maps)
    ]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    out.print_table(columns, rows, title="prod/eu")
    shown = click.unstyle(capsys.readouterr().out)
    assert shown.startswith("prod/eu")
    words = shown.split()
    for at, name in enumerate(maps):
        for cell in (name, f"node-{at}", "1,234,567", "999", "1.5", "0123456789abcdef" * 2):
            assert words.count(cell) >= 1, (cell, shown)
    if width == 200:
        assert "row 1" not in shown


def test_a_piped_demo_report_keeps_names_beside_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The name of a row was printed below its value, as prose is."""
    demo.show(Report("embedded maps", 500, 900, 20, 100), None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A year of flights"
    assert lines[2] == "played      500 flights: 900 changes (20 deletions) in 100 commits"
    assert lines[3] == "into        embedded maps"


def test_piped_output_has_no_frames(run: Run, url: str) -> None:
    """No line is wider than its row."""
    for command in (
        "ls",
        "stat",
        "verify",
        "archive --dry-run",
        "prune --dry-run",
        "rewrite --dry-run",
        "restore",
    ):
        words = command.split()
        ended = run(words[0], url, *words[1:])
        assert ended.code == 0, ended.err
        assert all(
            len(line) < 160 and "─" not in line and line == line.rstrip()
            for line in ended.out.splitlines()
        ), ended.out


@pytest.mark.parametrize("command", ["stat", "restore"])
def test_the_forecast_excludes_the_parquet_import(url: str, command: str) -> None:
    program = f"""
import sys
from imap_wal import clock
looked, seen = clock.SystemClock.monotonic, []
def look(self):
    seen.append(set(sys.modules))
    return looked(self)
clock.SystemClock.monotonic = look
from rewrite_cli.cli import group
group.main([{command!r}, {url!r}], standalone_mode=False)
heavy = ("pyarrow", "pandas", "imap_wal")
late = [name for name in set(sys.modules) - seen[0] if name.partition(".")[0] in heavy]
assert len(seen) > 1 and not late, late
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "entries" in ended.stdout


def test_the_spinner_shows_the_librarys_progress() -> None:
    """Its text is the progress that the library logs."""
    log = logging.getLogger("imap_wal")
    before = (log.level, list(log.handlers))
    with progress_bar() as progress:
        progress.add_task("opening")
        log.info("12 changes in 5 s")
        assert progress.tasks[-1].description == "12 changes in 5 s"
        log.warning("a warning is not for the spinner")
        assert progress.tasks[-1].description == "12 changes in 5 s"
    assert (log.level, list(log.handlers)) == before
