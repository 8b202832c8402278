"""A process forks while its threads write. The child has the locks that they held, and not the
threads: each method raises `Fenced` at once there, and the parent continues."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import ItemsView
from pathlib import Path

import pytest

from storage_backends.memory import MemoryStore
from tests.kit.effort import every
from tests.support import embedded


def test_no_store_or_map_can_be_pickled_or_copied(memory: MemoryStore) -> None:
    """A map that a program passes to a new process says what to do instead."""
    with embedded(memory) as store:
        m = store.map("m")
        m["a"] = 1
        for opened in (store, m, m.items(), store.queue("jobs"), m.watch()):
            for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                if attempt is copy.copy and isinstance(opened, ItemsView):
                    continue  # another view of the same map
                with pytest.raises(TypeError, match=r"cannot be pickled or copied.*imap_wal.open"):
                    attempt(opened)
        assert m.copy() == {"a": 1}


FORKS = """
import asyncio, os, sys, threading, time
import imap_wal
from imap_wal.errors import Fenced

def refused(calls):
    # The numbers of the calls that do not raise Fenced.
    failed = []
    for number, call in enumerate(calls):
        try:
            answer = call()
            if asyncio.iscoroutine(answer):
                answer.send(None)
        except Fenced as error:
            assert "forked child" in str(error)
        except BaseException as error:
            print(number, repr(error), flush=True)
            failed.append(number)
        else:
            failed.append(number)
    return failed

def fork(calls):
    child = os.fork()
    if not child:
        failed = refused(calls)
        print("failed", failed, flush=True) if failed else None
        os._exit(1 if failed else 0)
    for _ in range(2000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, "the child"
            return
        time.sleep(0.01)
    os.kill(child, 9)
    raise SystemExit("the child hangs")
"""

EMBEDDED = """
with imap_wal.open(sys.argv[1], durability=sys.argv[2]) as store:
    m, stop = store.map("m"), threading.Event()
    m["a"] = 1
    queue, other = store.queue("jobs"), imap_wal.open(sys.argv[1], read_only=True, follow=True)
    queue.put(1)
    job, watch, seen = queue.take(), m.watch(), other.map("m")
    cached = imap_wal.memoize(store.map("cached"))(abs)
    def write():
        number = 0
        while not stop.is_set():
            number += 1
            m[number % 50] = number
            list(m.items()) and store.statistics
    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    calls = [
        lambda: m.put("b", 1), lambda: m.update({"b": 1}), lambda: m.pop("a"), m.popitem, m.clear,
        lambda: m.setdefault("b", 1), lambda: m["a"], lambda: m.get("a"), lambda: "a" in m,
        lambda: len(m), lambda: list(m), lambda: list(m.items()), lambda: list(m.values()),
        m.snapshot, lambda: m.ttl("a"), lambda: m.__delitem__("a"),
        lambda: queue.put(1), lambda: queue.take(timeout=0), queue.take, lambda: queue.ack(job),
        lambda: queue.nack(job), lambda: len(queue), lambda: next(watch), m.watch,
        lambda: cached(-1), lambda: seen["a"], seen.snapshot, other.refresh, other.maps,
        other.close,
        store.sync, store.flush_wal, store.archive, store.compact, store.maps,
        lambda: store.map("other"), lambda: store.statistics, store.close, store.__enter__,
    ]
    try:
        for _ in range(8):
            fork(calls[:-1])
            time.sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    m["after"] = 1
    other.close()
with imap_wal.open(sys.argv[1]) as store:
    assert store.map("m")["after"] == 1
"""

ASYNC = """
async def play():
    async with imap_wal.aopen(sys.argv[1], durability=sys.argv[2]) as store:
        m = store.map("m")
        await m.set("a", 1)
        futures = [m.set(number, number) for number in range(2000)]
        fork([
            lambda: m.set("b", 1), lambda: m.put("b", 1), lambda: m.delete("a"), lambda: m.pop("a"),
            m.popitem, m.clear, lambda: m.setdefault("b", 1), lambda: m.update({"b": 1}),
            lambda: m.get("a"), lambda: len(m), m.snapshot,
            store.sync, store.flush_wal, store.archive, store.compact, store.maps, store.close,
            lambda: store.map("other"), lambda: store.statistics,
        ])
        await asyncio.gather(*futures)
asyncio.run(play())
"""

LOG = """
with imap_wal.log.create(sys.argv[1], durability=sys.argv[2]) as log:
    log.append("m", (b"k", b"v"))
    stop = threading.Event()
    def write():
        while not stop.is_set():
            log.append("m", (b"k", b"v"))
    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    tail, reader = log.tail(), imap_wal.log.LogReader(sys.argv[1])
    next(tail)
    begun = reader.follow()
    for _ in iter(begun.__next__, None):
        pass
    try:
        for _ in range(8):
            fork([
                lambda: log.append("m", (b"k", b"v")), log.sync, log.rotate, log.archive,
                log.shrink, lambda: next(iter(log.read())), lambda: next(iter(log.tail())),
                lambda: next(reader.read()), lambda: next(reader.tail()), reader.oldest,
                lambda: next(begun),
                lambda: log.high_water_mark, lambda: log.statistics, log.close,
            ])
            time.sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    log.append("m", (b"k", b"v"))
"""


@every(9)
@pytest.mark.parametrize("durability", ["always", "os"])
@pytest.mark.parametrize("program", [EMBEDDED, ASYNC, LOG], ids=["maps", "asyncio", "log"])
def test_every_method_raises_fenced_in_a_forked_child(
    tmp_path: Path, program: str, durability: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKS + program, str(tmp_path / "log"), durability],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
