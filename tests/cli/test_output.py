"""The output outside a terminal, and during a long command."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import click
import pytest

import imap_wal
from examples.demo.__main__ import show
from examples.demo.embedded import Report
from rewrite_cli.console import output as out
from rewrite_cli.console.progress import progress as progress_bar
from tests.cli.conftest import Run
from tests.kit.effort import thorough


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


def test_a_terminal_shows_names_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich reads square brackets as styles, also after a backslash, and :tada: as a symbol."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    name = r"[bold]a\[red]b[/] :tada:"
    out.print_table(("map", "rows"), [(name, 1)], title=f"{name}/eu")
    shown = capsys.readouterr().out
    assert f"{name}/eu" in shown
    assert shown.count(name) == 2


def test_a_piped_demo_report_keeps_names_beside_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The name of a row was printed below its value, as prose is."""
    show(Report("embedded maps", 500, 900, 20, 100), None)
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


@thorough
@pytest.mark.parametrize("command", ["stat", "restore"])
def test_the_forecast_excludes_the_parquet_import(url: str, command: str) -> None:
    program = f"""
import sys
from pathlib import Path
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


def test_names_bring_no_styles_or_line_ends(run: Run, tmp_path: Path) -> None:
    """A name may look like our own colour, or like the start of a further message."""
    url = tmp_path / "log"
    name = "\x1b[31mred\nerror: all is lost"
    written = r"\x1b[31mred\nerror: all is lost"
    with imap_wal.open(str(url), cluster=name) as store:
        store.map(name)["k"] = 1
    for words in (
        ("export", url, "--map", "nosuch"),
        ("get", url, "k", "--map", "nosuch"),
        ("drop", url, "--map", name),
        ("ls", url, "--cluster", "nosuch"),
        ("prune", url, "--forget-reader", "nosuch"),
        ("upgrade", url, "--cluster", name, "--wrong", name),
        ("export", url, "--as-of", "2020-01-01"),
        ("restore", url, "--to", url),
    ):
        ended = run(*words)
        assert ended.code in (1, 2), words
        assert "\x1b" not in ended.err and "\nerror: all is lost" not in ended.err, words
        assert written in ended.err or "--wrong" in words, (words, ended.err)


def test_only_our_own_styles_are_kept() -> None:
    text = "map \x1b[31mred" + out.styled("lost \x1b[0m", fg="red") + "\x1b[32m\n\tmore"
    assert out.safe(text) == (
        r"map \x1b[31mred" + click.style(r"lost \x1b[0m", fg="red") + r"\x1b[32m" + "\n\tmore"
    )


def test_one_of_something_is_singular() -> None:
    assert [out.count(each, "file") for each in (0, 1, 1234)] == [
        "0 files",
        "1 file",
        "1,234 files",
    ]
    assert [out.count(each, "entry", "entries") for each in (1, 2)] == ["1 entry", "2 entries"]


def test_durations_have_units_that_fit_them() -> None:
    """Two days were 2880 min 0 s."""
    seconds = (0.0123, 5, 75, 3600, 90_000, 604_800)
    shown = ["12 ms", "5.0 s", "1 min 15 s", "1 h 0 min", "1 d 1 h", "7 d 0 h"]
    assert [out.duration(each) for each in seconds] == shown


def test_doctor_counts_one_node(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(str(tmp_path / "log"), node="n1") as store:
        store.map("m")["k"] = 1
    assert ": 1 node, epoch 1\n" in run("doctor", tmp_path / "log").out
