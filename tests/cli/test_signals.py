"""A command that a signal ends leaves no scratch files, no temporary files and no locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import imap_wal
from tests.kit.effort import every, thorough

PAUSED = """
import sys, threading
import rewrite_cli.cli

def pause(*_):
    sys.stdout.write("scratch\\n")
    sys.stdout.flush()
    threading.Event().wait(60)

{patch}
sys.argv[0] = "imap-wal"
rewrite_cli.cli.main()
"""
COMMANDS = {
    "query": (
        "import rewrite_cli.entries.tables as t; t._load_latest = pause",
        ["query", "URL", "from m"],
    ),
    "rewrite": (
        "import imap_wal.rewrite.columns.merge as e; e.ColumnMerge.write = pause",
        ["rewrite", "URL"],
    ),
    "export": (
        "import rewrite_cli.commands.reading.export as e; e._flat = pause",
        ["export", "URL", "--to", "TMP/out.csv"],
    ),
    "diff": (
        "import rewrite_cli.commands.reading.diff as d; d.Comparison.fill = pause",
        ["diff", "URL", "URL"],
    ),
}


@every(5)
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=thorough),
        pytest.param(signal.SIGHUP, marks=thorough),
    ],
)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_leaves_no_scratch(tmp_path: Path, name: str, number: signal.Signals) -> None:
    with imap_wal.open((tmp_path / "log").as_uri()) as store:
        store.map("m")["k"] = 1
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    patch, words = COMMANDS[name]
    words = [
        word.replace("URL", str(tmp_path / "log")).replace("TMP", str(scratch)) for word in words
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSED.format(patch=patch), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "scratch\n"
    assert list(scratch.iterdir()) != []
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err.strip()) == (128 + number, "error: stopped")
    assert list(scratch.iterdir()) == []
