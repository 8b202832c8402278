"""The system calls before an acknowledgement."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STRACED = """
import os, sys, imap_wal
store = imap_wal.open(sys.argv[1], node="n", durability=sys.argv[2])
m = store.map("m")
m["warm"] = 0
os.write(1, b"begin")
for number in range(3):
    m[f"key{number}"] = "value"
    os.write(1, b"ack%d" % number)
os.write(1, b"end")
os._exit(0)
"""


def strace(tmp_path: Path, url: str, durability: str) -> list[str]:
    """The system calls of three puts and their acknowledgements, in order, by name."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (apt-get install strace)")
    output = tmp_path / f"strace-{durability}"
    calls = "pwrite64,pwritev,pwritev2,write,fdatasync,fsync,sync_file_range"
    run = subprocess.run(
        [
            "strace",
            "-f",
            "-y",
            "-e",
            f"trace={calls}",
            "-o",
            str(output),
            sys.executable,
            "-c",
            STRACED,
            url,
            durability,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stdout == "beginack0ack1ack2end", f"strace could not trace here: {run.stderr}"
    names = []
    for line in output.read_text().splitlines():
        call = re.match(r"\d+ +(\w+)\((\d+)<([^>]*)>, ?(.*)", line) or re.match(
            r"\d+ +(\w+)\((\d+)<([^>]*)>(.*)", line
        )
        if call is None:
            continue
        assert not re.search("resumed|unfinished", line), "one thread, no calls at once"
        if call[1] == "write" and call[2] == "1":
            names.append(re.findall(r'"(\w+)"', line)[0])
        elif ".wal" in call[3]:
            names.append(f"{call[1]} {'ok' if not line.rstrip().endswith('= -1') else 'failed'}")
    return names[names.index("begin") + 1 : names.index("end")]


def test_always_acknowledges_only_after_fdatasync(tmp_path: Path, url: str) -> None:
    """Every acknowledgement of `always` follows an fdatasync of the written bytes."""
    calls = strace(tmp_path, url, "always")
    assert len(calls) == 9
    for number in range(3):
        write, sync, ack = calls[3 * number : 3 * number + 3]
        assert write.startswith("pwrite")
        assert sync == "fdatasync ok"
        assert ack == f"ack{number}"


def test_os_writes_before_it_acknowledges_and_does_not_sync(tmp_path: Path, url: str) -> None:
    calls = strace(tmp_path, url, "os")
    assert [call.replace("pwritev2", "pwritev").split()[0] for call in calls] == [
        "pwritev",
        "ack0",
        "pwritev",
        "ack1",
        "pwritev",
        "ack2",
    ]
