"""The output of a command has no space: the error names it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rewrite_cli.console import whole_file
from tests.cli.conftest import Run
from tests.kit.effort import every, thorough

FULL = Path("/dev/full")


@every(7)
@pytest.mark.parametrize(
    "words",
    [
        ("dump", "URL"),
        ("ls", "URL", "-o", "json"),
        ("export", "URL"),
        ("query", "URL", "select 1", "-o", "csv"),
        ("plugin", "config"),
        ("completion", "bash"),
    ],
    ids=" ".join,
)
def test_a_full_standard_output_is_named(url: str, words: tuple[str, ...]) -> None:
    given = [url if word == "URL" else word for word in words]
    with FULL.open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "rewrite_cli", *given],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert "the standard output cannot be written: No space left on device; free" in ended.stderr


@every(10)
@pytest.mark.parametrize(
    "words",
    [
        ("ls", "URL"),
        ("dump", "URL"),
        ("tail", "URL", "-f"),
        ("stat", "URL", "-o", "json"),
        ("export", "URL"),
        ("query", "URL", "select 1", "-o", "csv"),
        ("completion", "bash"),
        ("--version",),
    ],
    ids=" ".join,
)
def test_a_closed_standard_output_is_an_error(url: str, words: tuple[str, ...]) -> None:
    given = [url if word == "URL" else word for word in words]
    ended = closing(">&- <&-", given)
    assert ended.returncode == 1
    assert ended.stderr == "error: the standard output is closed: write to another place\n"


@thorough
def test_closed_streams_that_are_not_used_do_no_harm(url: str, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert closing(">&- 2>&- <&-", ["export", url, "--to", str(target)]).returncode == 0
    assert len(target.read_text().splitlines()) == 10
    assert closing("2>&- <&-", ["ls", url]).stdout.startswith("namespace")
    asked = closing("<&-", ["forget-node", url, "--node", "n1", "--lose"])
    assert "No terminal to ask on" in asked.stderr


def closing(streams: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command without these streams."""
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {streams}', "bash", sys.executable, "-m", "rewrite_cli", *words],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@every(4)
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("command", [("export",), ("query", "select 1 as a")], ids=lambda it: it[0])
def test_a_device_is_written_and_not_replaced(
    run: Run, url: str, tmp_path: Path, ending: str, command: tuple[str, ...]
) -> None:
    """Even by a user who could replace it."""
    target = tmp_path / f"out.{'json' if command[0] == 'query' and ending == 'jsonl' else ending}"
    target.symlink_to(FULL)
    ended = run(command[0], url, *command[1:], "--to", target)
    assert ended.code == 1
    assert f"{target} cannot be written: No space left on device; free space there" in ended.err
    assert target.is_symlink()
    assert stat.S_ISCHR(os.stat(FULL).st_mode)


def test_only_links_of_the_system_are_written_in_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """/dev/stdout may lead to a file. But a file in /dev/shm is written whole or not at all."""
    monkeypatch.setattr(whole_file, "SYSTEM", (tmp_path,))
    file, link = tmp_path / "shm" / "file", tmp_path / "stdout"
    file.parent.mkdir()
    file.write_text("before")
    link.symlink_to(file)
    with pytest.raises(ValueError, match="failed"), whole_file.text_file(file) as target:
        target.write("half")
        raise ValueError("failed")
    assert file.read_text() == "before"
    with whole_file.text_file(link) as target:
        target.write("after")
    assert link.is_symlink()
    assert file.read_text() == "after"
