"""`imap-wal tail` as a real process, beside a writer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import imap_wal
from tests.cli.conftest import Run
from tests.kit.effort import every

CLI = [sys.executable, "-m", "rewrite_cli.cli"]


@contextmanager
def tail(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*CLI, "tail", url, "-f", "-o", "json", "--interval", "20ms", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read(process: subprocess.Popen[str], count: int) -> list[dict[str, object]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_tail_prints_the_last_entries(run: Run, url: str) -> None:
    dumped = run("dump", url, "-o", "json").lines
    assert run("tail", url, "-o", "json").lines == dumped[-10:]
    assert run("tail", url, "-n", "3", "-o", "json").lines == dumped[-3:]
    assert run("tail", url, "-n", "99", "-o", "json").lines == dumped
    assert run("tail", url, "--map", "oders").code == 1


def test_tail_follows_all_nodes_across_rotations_archives_and_a_prune(run: Run, url: str) -> None:
    """Each entry once, in the order of its node; also of a node that joins meanwhile."""
    with tail(url, "-n", "1") as process:
        read(process, 1)
        for turn in range(4):
            for node in ("n1", "n2", "n3"):
                with imap_wal.open(url, namespace="prod", cluster="eu", node=node) as store:
                    store.map("orders").update({f"{node}-{turn}-{key}": key for key in range(20)})
                    store.map("sessions")[f"{node}-{turn}"] = turn
                    if turn % 2:
                        store.archive()
                    store.map("orders")[f"{node}-{turn}-last"] = turn
            if turn == 2:
                lines = read(process, 3 * 3 * 22)
                assert run("rewrite", url).code == 0
                assert run("prune", url, "--yes").code == 0
        lines += read(process, 3 * 22)
        keys = [line["key"] for line in lines]
        assert len(set(map(str, keys))) == len(keys) == 4 * 3 * 22
        for node in ("n1", "n2", "n3"):
            for name in ("orders", "sessions"):
                places = [
                    str(line["position"])
                    for line in lines
                    if line["node"] == node and line["map"] == name
                ]
                assert places == sorted(places)


@every(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_ends_quietly_at_a_signal(url: str, number: signal.Signals) -> None:
    with tail(url, "-n", "1") as process:
        read(process, 1)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")


def test_tail_ends_quietly_when_its_pipe_is_closed(url: str, tmp_path: Path) -> None:
    """Also if nothing is appended any more."""
    script = f"{' '.join(CLI)} tail {url} -f --interval 20ms | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
