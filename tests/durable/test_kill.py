"""kill -9 at random moments: every acknowledged change is there, and what was not acknowledged is there whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

import imap_wal
from imap_wal import errors
from tests.durable.children import ACK, apply, write_until_killed

THREADS = 3
KILLS = 50

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["imap_wal", "imap_wal.retention.archive", "tests.durable.children"])


def kill_after(acks: int, url: str, durability: str, seed: int, starts: list[int]) -> list[int]:
    """Let a child write until so many operations were acknowledged, and kill it in the middle of the next; returns how far each thread's
    acknowledgements came, read to the last byte that the child had sent."""
    ours, theirs = _context.Pipe(duplex=False)
    child = _context.Process(target=write_until_killed, args=(url, durability, seed, starts, theirs))
    child.start()
    theirs.close()
    done = list(starts)
    data = b""
    killed = False
    while part := os.read(ours.fileno(), 65536):
        data += part
        if not killed and len(data) >= acks * ACK.size:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            killed = True
    child.join(30)
    ours.close()
    assert child.exitcode == -signal.SIGKILL, f"the child ended by itself with {child.exitcode}"
    for thread, number in ACK.iter_unpack(data):
        assert number == done[thread]
        done[thread] = number + 1
    return done


@pytest.mark.parametrize("durability", ["always", "os"])
def test_fifty_kills_at_random_moments_lose_nothing_that_was_acknowledged(url: str, durability: str, seed: int) -> None:
    kill_again_and_again(url, durability, seed, KILLS)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["always", "os"])
def test_a_thousand_kills_at_random_moments_lose_nothing_that_was_acknowledged(url: str, durability: str, seed: int) -> None:
    kill_again_and_again(url, durability, seed, 1000)


def kill_again_and_again(url: str, durability: str, seed: int, kills: int) -> None:
    """Each time: what came back is what was acknowledged, and perhaps the one operation that was under way, whole."""
    chance = Random(seed)
    states: list[dict[str, Any]] = [{} for _ in range(THREADS)]
    done = [0] * THREADS
    for kill in range(kills):
        before, done = done, kill_after(chance.choice((1, 2, 5, 20, 60)), url, durability, seed, done)
        with imap_wal.open(url, node="n") as store:
            found = dict(store.map("m").items())
        for thread in range(THREADS):
            for number in range(before[thread], done[thread]):
                apply(states[thread], seed, thread, number)
            mine = {key: value for key, value in found.items() if key.startswith(f"{thread}.")}
            one_more = dict(states[thread])
            apply(one_more, seed, thread, done[thread])
            assert mine in (states[thread], one_more), f"kill {kill}, thread {thread}, {done[thread]} acknowledged"
            if mine != states[thread]:
                states[thread] = one_more
                done[thread] += 1
    assert sum(done) > kills


def test_a_killed_holder_leaves_the_log_free_at_once(url: str, seed: int) -> None:
    kill_after(1, url, "always", seed, [0])
    imap_wal.open(url, node="n").close()


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
        ["strace", "-f", "-y", "-e", f"trace={calls}", "-o", str(output), sys.executable, "-c", STRACED, url, durability],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.stdout == "beginack0ack1ack2end", f"strace could not trace here: {run.stderr}"
    names = []
    for line in output.read_text().splitlines():
        call = re.match(r"\d+ +(\w+)\((\d+)<([^>]*)>, ?(.*)", line) or re.match(r"\d+ +(\w+)\((\d+)<([^>]*)>(.*)", line)
        if call is None:
            continue
        assert not re.search("resumed|unfinished", line), "one thread, no calls at once"
        if call[1] == "write" and call[2] == "1":
            names.append(re.findall(r'"(\w+)"', line)[0])
        elif ".wal" in call[3]:
            names.append(f"{call[1]} {'ok' if not line.rstrip().endswith('= -1') else 'failed'}")
    return names[names.index("begin") + 1 : names.index("end")]


def test_every_acknowledgement_of_always_comes_after_an_fdatasync_of_what_was_written(tmp_path: Path, url: str) -> None:
    calls = strace(tmp_path, url, "always")
    assert len(calls) == 9
    for number in range(3):
        write, sync, ack = calls[3 * number : 3 * number + 3]
        assert write.startswith("pwrite")
        assert sync == "fdatasync ok"
        assert ack == f"ack{number}"


def test_os_writes_before_it_acknowledges_and_does_not_sync(tmp_path: Path, url: str) -> None:
    calls = strace(tmp_path, url, "os")
    assert [call.replace("pwritev2", "pwritev").split()[0] for call in calls] == ["pwritev", "ack0", "pwritev", "ack1", "pwritev", "ack2"]


def test_a_forked_child_neither_keeps_the_log_locked_nor_writes_into_it(url: str) -> None:
    store = imap_wal.open(url, node="n")
    store.map("m")["parent"] = 1
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"wrote"
        try:
            store.map("m")["child"] = 1
        except errors.ImapWalError as error:
            answer = type(error).__name__.encode()
        except BaseException as error:
            answer = repr(error).encode()
        os.write(write, answer)
        signal.pause()
        os._exit(0)
    os.close(write)
    try:
        assert os.read(read, 1000) == b"Fenced"
        store.map("m")["after"] = 2
        store.close()
        with imap_wal.open(url, node="n") as again:
            assert dict(again.map("m").items()) == {"parent": 1, "after": 2}
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
