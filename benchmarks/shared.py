"""Several processes: how soon a follower shows a change, and changes through `imap_wal.connect`."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import imap_wal

CONTEXT: Any = multiprocessing.get_context("spawn")
PAUSE_S = 0.007
GOAL_MS = 10


def follow(url: str, changes: int, ready: Any, times: str) -> None:
    """When this process first sees each change: the system's monotonic clock."""
    seen = [0.0] * (changes + 1)
    with imap_wal.open(url, read_only=True, follow=True) as store:
        numbers = store.map("m")
        ready.set()
        last = 0
        while last < changes:
            number = numbers.get("n", 0)
            if number != last:
                now = time.monotonic()
                for each in range(last + 1, number + 1):
                    seen[each] = now
                last = number
            time.sleep(0.0002)
    Path(times).write_text(json.dumps(seen), encoding="utf-8")


def delays_ms(folder: Path, changes: int) -> list[float]:
    """From the acknowledgement of a change until a follower in another process shows it."""
    ready, times = CONTEXT.Event(), str(folder / "times")
    with imap_wal.open(folder / "log") as store:
        numbers = store.map("m")
        numbers["n"] = 0
        follower = CONTEXT.Process(target=follow, args=(str(folder / "log"), changes, ready, times))
        follower.start()
        ready.wait()
        acknowledged = [0.0]
        for number in range(1, changes + 1):
            numbers["n"] = number
            acknowledged.append(time.monotonic())
            time.sleep(PAUSE_S)
        follower.join()
    seen = json.loads(Path(times).read_text(encoding="utf-8"))
    return [
        max(0.0, 1000 * (shown - done))
        for shown, done in zip(seen[1:], acknowledged[1:], strict=True)
    ]


def add(url: str, threads: int, changes: int, start: Any) -> None:
    """Add to one counter for each thread."""
    with imap_wal.connect(url) as store:
        m = store.map("m")

        def work(number: int) -> None:
            for _ in range(changes):
                m.add(number)

        start.wait()
        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        start.wait()


def adds_per_s(folder: Path, processes: int, threads: int, changes: int) -> float:
    """By several processes; another one serves."""
    with imap_wal.connect(folder / "served") as store:
        start = CONTEXT.Barrier(processes + 1)
        arguments = (str(folder / "served"), threads, changes, start)
        workers = [CONTEXT.Process(target=add, args=arguments) for _ in range(processes)]
        for worker in workers:
            worker.start()
        start.wait()
        began = time.monotonic()
        start.wait()
        seconds = time.monotonic() - began
        for worker in workers:
            worker.join()
        assert sum(store.map("m").values()) == processes * threads * changes
    return processes * threads * changes / seconds


def local_per_s(folder: Path, changes: int) -> float:
    with imap_wal.open(folder / "local") as store:
        m = store.map("m")
        began = time.monotonic()
        for _ in range(changes):
            m.add("n")
        return changes / (time.monotonic() - began)


def run(repetitions: int, quick: bool) -> list[dict[str, Any]]:
    rows: dict[str, list[float]] = {}
    changes = 300 if quick else 2000
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            delays = sorted(delays_ms(folder, changes))
            rows.setdefault("a follower shows a change: median", []).append(
                statistics.median(delays)
            )
            rows.setdefault("a follower shows a change: p99", []).append(
                delays[int(0.99 * len(delays))]
            )
            rows.setdefault("add, 1 thread, open", []).append(local_per_s(folder, changes))
            for processes, threads in ((1, 1), (4, 1), (4, 8)):
                title = f"add, {processes} × {threads} threads, connect"
                rows.setdefault(title, []).append(
                    adds_per_s(folder / title, processes, threads, changes // (2 * threads))
                )
    local = statistics.median(rows["add, 1 thread, open"])
    return [row(title, values, local) for title, values in rows.items()]


def row(title: str, values: list[float], local: float) -> dict[str, Any]:
    delay = "follower" in title
    median = statistics.median(values)
    return {
        "measurement": title,
        "median": round(median, 2) if delay else round(median),
        "least": round(min(values), 2) if delay else round(min(values)),
        "most": round(max(values), 2) if delay else round(max(values)),
        "unit": "ms" if delay else "changes/s",
        "ratio": round(median / (GOAL_MS if delay else local), 3),
        "to": f"{GOAL_MS} ms" if delay else "add, 1 thread, open",
        "target": 1 if title.endswith("p99") else None,
        "at_most": delay,
    }
