"""Processes that share a store, as the workers of a web application do."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import imap_wal

CONTEXT: Any = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.kit.worker_processes"])


def count(folder: str, name: str, operations: int) -> None:
    """Add to counters and move jobs. The journal has each operation before and after it."""
    with (Path(folder) / f"{name}.journal").open("a", encoding="utf-8") as journal:

        def note(**line: Any) -> None:
            journal.write(json.dumps(line) + "\n")
            journal.flush()

        store = imap_wal.connect(Path(folder) / "log", socket=Path(folder) / "socket")
        counts, jobs, done = (store.map(each) for each in ("counts", "jobs", "done"))

        @store.transaction
        def work(transaction: imap_wal.Transaction, job: str) -> None:
            del transaction[jobs][job]
            transaction[done][job] = name

        for number in range(operations):
            note(begin=number)
            counts.add("all")
            counts.add(name)
            jobs[f"{name}-{number}"] = number
            work(f"{name}-{number}")
            note(end=number, serving=os.getpid() if store.is_serving else 0)  # type: ignore[attr-defined]
        store.close()


def journal(folder: Path, name: str) -> tuple[int, int]:
    """How many operations a process began and ended."""
    try:
        lines = (folder / f"{name}.journal").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return 0, 0
    notes = [json.loads(line) for line in lines]
    return sum("begin" in note for note in notes), sum("end" in note for note in notes)


def serving(folder: Path, name: str) -> bool:
    """Whether a process served at the end of its last operation."""
    try:
        lines = (folder / f"{name}.journal").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    notes = [json.loads(line) for line in lines]
    return bool(notes and notes[-1].get("serving"))
