"""A log stays small with a plain install, after many short runs, and at a close that is short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal import arrow_library
from imap_wal.rewrite import compaction
from storage_backends.memory import MemoryStore
from tests.kit.compactions import size
from tests.kit.effort import thorough
from tests.support import embedded

PLAIN = """
import sys
sys.modules["pyarrow"] = None  # as in an install without any extra
from imap_wal.retention import other_process
other_process._MAIN = "import sys; sys.modules['pyarrow'] = None; " + other_process._MAIN
import imap_wal
"""

OVERWRITES = """
from imap_wal.rewrite import compaction
compaction.FIRST_LOOK_S = 0.01
url, times, least = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with imap_wal.open(url, auto_rewrite_min_bytes=least, auto_rewrite_close_s=500) as store:
    hits = store.map("hits")
    for number in range(times):
        hits.update({f"k{key}": number for key in range(100)})
    failure = store.statistics.compaction.error
    assert not failure, failure
with imap_wal.open(url) as store:
    assert dict(store.map("hits")) == {f"k{key}": times - 1 for key in range(100)}
"""


def run(code: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PLAIN + code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(imap_wal.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def files(root: Path) -> list[str]:
    """The files with entries."""
    return sorted(path.name for path in root.rglob("*") if path.suffix in (".wal", ".parquet"))


@pytest.mark.parametrize(
    ("times", "least"), [(300, 200_000), pytest.param(10_000, 8 * 1024 * 1024, marks=thorough)]
)
def test_a_plain_install_keeps_the_log_small(tmp_path: Path, times: int, least: int) -> None:
    """30,000 and a million overwrites of 100 keys. The bound: what may grow before a compaction,
    and as much during one."""
    ended = run(OVERWRITES, str(tmp_path / "log"), str(times), str(least), folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert size(tmp_path) < 3 * least
    assert not [name for name in files(tmp_path) if name.endswith(".parquet")]


def test_a_plain_install_refuses_parquet_in_one_line(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path / "log") as store:
        store.map("orders")["a"] = 1
        store.archive()
    said = "import traceback\ntry:\n    imap_wal.open(sys.argv[1])\n"
    said += "except imap_wal.MissingLibrary as error:\n    print(error)\n"
    ended = run(said, str(tmp_path / "log"), folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "is a Parquet file" in ended.stdout
    assert "pip install 'imap-wal[archive]'" in ended.stdout


@pytest.mark.parametrize("setting", ["archive_interval_s", "max_total_wal_size"])
def test_a_plain_install_refuses_settings_that_archive(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(arrow_library, "is_installed", lambda: False)
    with pytest.raises(imap_wal.MissingLibrary, match=rf"{setting} writes archives"):
        embedded(memory, **{setting: 60})


def test_many_short_runs_leave_few_files(tmp_path: Path) -> None:
    """The close that is due leaves one file; no process is started for it."""
    expected = {}
    for number in range(2 * compaction.SEGMENTS_MAX):
        with imap_wal.open(tmp_path, auto_rewrite_close_s=60) as store:
            store.map("orders")[f"k{number % 5}"] = expected[f"k{number % 5}"] = number
            assert store._compactor._process is not None
            store._compactor._process.stop()
        assert len(files(tmp_path)) <= compaction.SEGMENTS_MAX
    assert len(files(tmp_path)) == 1
    with imap_wal.open(tmp_path) as store:
        assert dict(store.map("orders")) == expected
    assert len(files(tmp_path)) == 1, "a run that only reads leaves nothing"


def compactions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One item for each compaction that runs. An error of it would only be reported."""
    ran: list[object] = []
    monkeypatch.setattr(compaction.CompactionTask, "run", lambda *given: ran.append(given))
    return ran


DUE: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 1}


def test_a_block_that_an_error_ends_waits_for_no_compaction(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a Ctrl-C, or a signal whose handler raises SystemExit."""
    ran = compactions(monkeypatch)
    with pytest.raises(SystemExit), embedded(memory, **DUE) as store:
        store.map("orders")["a"] = 1
        raise SystemExit
    assert not ran
    with embedded(memory, auto_rewrite_percentage=0) as store:
        assert dict(store.map("orders")) == {"a": 1}


ENDS = """
import atexit, signal, threading
from imap_wal.rewrite import compaction
asked = []
compaction.Compactor._fits = lambda self, limit_s: asked.append(limit_s)
atexit.register(lambda: print(asked))
store = imap_wal.open(sys.argv[1])
store.map("orders")["a"] = 1
atexit.register(store.close)
"""


def test_a_program_that_ends_waits_for_no_compaction(tmp_path: Path) -> None:
    """Its close is called by `atexit`."""
    ended = run(ENDS, str(tmp_path / "log"), folder=tmp_path)
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "[]\n")


def test_the_default_of_a_close_fits_a_container() -> None:
    """Docker kills a container 10 seconds after it has asked it to stop."""
    assert imap_wal.Settings().auto_rewrite_close_s <= 5
