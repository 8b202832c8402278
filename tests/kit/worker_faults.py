"""Lost answers and kills of processes that share a store."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import imap_wal
from imap_wal.workers.server import Server
from tests.kit.worker_processes import CONTEXT, count, ended_operations, journal, serving
from tests.support import eventually


class Cutting:
    """Closes connections before or after a request is evaluated, and ends the server."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.random = Random(seed)
        self.cuts = 0
        answer = Server._answer

        def cut(server: Server, connection: socket.socket, *rest: Any) -> bool:
            how = self.random.randrange(12)
            if how == 0:
                self.cuts += 1
                return False
            if how in (1, 2):
                own, other = socket.socketpair()
                with own, other:
                    answer(server, own, *rest)
                self.cuts += 1
                if how == 2:
                    threading.Thread(target=server._give_up, daemon=True).start()
                return False
            return answer(server, connection, *rest)

        patch.setattr(Server, "_answer", cut)


def check_journals(folder: Path, names: list[str], whole: set[str]) -> None:
    """What the log has is what the processes did: nothing lost, nothing twice. Of an operation that
    a kill interrupted, each part may be there."""
    with imap_wal.open(folder / "log") as store:
        counts, done, jobs = store.map("counts"), store.map("done"), store.map("jobs")
        began, ended = 0, 0
        for name in names:
            begun, over = journal(folder, name)
            began, ended = began + begun, ended + over
            assert over <= counts.get(name, 0) <= begun, name
            assert name not in whole or over == begun == counts[name], name
            for number in ended_operations(folder, name):
                assert done[f"{name}-{number}"] == name
        assert ended <= counts["all"] <= began
        assert sum(counts[name] for name in names if name in counts) <= counts["all"]
        assert ended <= len(done) <= began and len(jobs) <= began - ended


def run_workers(
    folder: Path,
    workers: int,
    operations: int,
    kills: int,
    seed: int,
    work: Callable[[str, str, int], None] = count,
) -> None:
    random = Random(seed)
    names, running, whole = [], {}, set()

    def start() -> None:
        name = f"w{len(names)}"
        names.append(name)
        running[name] = CONTEXT.Process(target=work, args=(str(folder), name, operations))
        running[name].start()

    for _ in range(workers):
        start()

    def alive_now() -> list[str]:
        """On a quick machine all workers may end before the next kill."""
        if not any(process.is_alive() for process in running.values()):
            start()
        return [name for name, process in running.items() if process.is_alive()]

    for number in range(kills):
        alive_now()
        total = sum(journal(folder, name)[1] for name in names)

        def moved(total: int = total) -> bool:
            ended = not any(process.is_alive() for process in running.values())
            return ended or sum(journal(folder, name)[1] for name in names) >= total + 6

        eventually(moved, "the workers go on", 60)
        alive = alive_now()
        serves = [name for name in alive if serving(folder, name)]
        victim = random.choice(serves or alive) if number % 2 == 0 else random.choice(alive)
        os.kill(running[victim].pid, signal.SIGKILL)
        running.pop(victim).join()
        start()
    for name, process in running.items():
        process.join(100)
        assert process.exitcode == 0, name
        whole.add(name)
    check_journals(folder, names, whole)
