"""`imap-wal serve`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import imap_wal


def serve(folder: Path) -> subprocess.Popen[str]:
    words = ["serve", str(folder / "log"), "--socket", str(folder / "socket")]
    return subprocess.Popen(
        [sys.executable, "-m", "rewrite_cli", *words], stderr=subprocess.PIPE, text=True
    )


def test_serve_has_the_log_until_a_signal(tmp_path: Path) -> None:
    """Programs connect meanwhile; a second one is refused with exit code 4."""
    with (
        serve(tmp_path) as serving,
        imap_wal.connect(
            tmp_path / "log", socket=tmp_path / "socket", serve=False, timeout_s=60
        ) as store,
    ):
        assert store.map("m").add("n") == 1
        with serve(tmp_path) as second:
            assert "which serves at" in second.communicate()[1]
            assert second.returncode == 4
        assert store.map("m").add("n") == 2
        serving.send_signal(signal.SIGTERM)
        assert "serving " in serving.communicate()[1]
        assert serving.returncode == 0
    with imap_wal.open(tmp_path / "log", read_only=True) as store:
        assert store.map("m")["n"] == 2
