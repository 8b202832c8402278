"""Processes that share a store, as the workers of a web application do."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import imap_wal

CONTEXT: Any = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.kit.worker_processes"])


def count(folder: str, name: str, operations: int) -> None:
    """Add to counters and move jobs. The journal has each operation before and after it."""
    with noting(folder, name) as note:
        store = imap_wal.connect(Path(folder) / "log", socket=Path(folder) / "socket")
        counts, jobs, done = (store.map(title) for title in ("counts", "jobs", "done"))

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


def count_async(folder: str, name: str, operations: int) -> None:
    """The same in tasks of an event loop, several of which are under way."""
    asyncio.run(_count_async(folder, name, operations))


async def _count_async(folder: str, name: str, operations: int) -> None:
    numbers = iter(range(operations))
    with noting(folder, name) as note:
        url, socket = Path(folder) / "log", Path(folder) / "socket"
        async with imap_wal.aconnect(url, socket=socket) as store:
            counts, jobs, done = [await store.map(title) for title in ("counts", "jobs", "done")]

            @store.transaction
            def work(transaction: imap_wal.Transaction, job: str) -> None:
                del transaction[jobs][job]
                transaction[done][job] = name

            async def operate() -> None:
                for number in numbers:
                    note(begin=number)
                    await asyncio.gather(counts.add("all"), counts.add(name))
                    await jobs.set(f"{name}-{number}", number)
                    await work(f"{name}-{number}")
                    note(end=number, serving=os.getpid() if store.is_serving else 0)

            await asyncio.gather(*(operate() for _ in range(3)))


@contextmanager
def noting(folder: str, name: str) -> Iterator[Callable[..., None]]:
    """Writes lines of the journal of this process."""
    with (Path(folder) / f"{name}.journal").open("a", encoding="utf-8") as journal:

        def note(**line: Any) -> None:
            journal.write(json.dumps(line) + "\n")
            journal.flush()

        yield note


def journal(folder: Path, name: str) -> tuple[int, int]:
    """How many operations a process began and ended."""
    notes = _notes(folder, name)
    return sum("begin" in note for note in notes), sum("end" in note for note in notes)


def ended_operations(folder: Path, name: str) -> list[int]:
    """The operations that a process ended."""
    return [note["end"] for note in _notes(folder, name) if "end" in note]


def serving(folder: Path, name: str) -> bool:
    """Whether a process served at the end of its last operation."""
    notes = _notes(folder, name)
    return bool(notes and notes[-1].get("serving"))


def _notes(folder: Path, name: str) -> list[dict[str, Any]]:
    try:
        lines = (folder / f"{name}.journal").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]
