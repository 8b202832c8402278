"""The output of a command has no space: the error names it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

FULL = Path("/dev/full")


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
