"""Reads memory, open files and threads of all processes of a world, and the size of its log."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.nemesis.world import World
from tests.soak.lines import Line


class Gauges:
    """Samples on a thread of its own, between `start` and `stop`."""

    def __init__(self, world: World, every_s: float) -> None:
        self._world, self._every_s = world, every_s
        self._begin = time.monotonic()
        self._lines: dict[tuple[str, str, int], Line] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak-gauges", daemon=True)

    @property
    def lines(self) -> list[Line]:
        return list(self._lines.values())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(30)

    def note(self, quantity: str, name: str, value: float, life: int = 0) -> None:
        """Add a value to a line. `life`: the id of the process, if it is one."""
        line = self._lines.setdefault((quantity, name, life), Line(quantity, name))
        line.points.append((round(time.monotonic() - self._begin, 1), value))

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            for name, pid in self._processes():
                for quantity, value in _of_process(pid):
                    self.note(quantity, name, value, pid)
            self.note("disk", "log", sum(map(_size, self._world.folders)))

    def _processes(self) -> Iterator[tuple[str, int]]:
        for number, agent in enumerate(self._world.cluster.agents, 1):
            if agent.running:
                yield f"agent {number}", agent.pid
        for member in self._world.cluster.running:
            yield f"member {member.node}", member.pid


def _of_process(pid: int) -> Iterator[tuple[str, float]]:
    """Nothing, if the process has ended."""
    with suppress(OSError, KeyError, ValueError):
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        files = len(os.listdir(f"/proc/{pid}/fd"))
        memory = int(status["VmRSS"].split()[0]) * 1024
        yield from (("memory", memory), ("files", files), ("threads", int(status["Threads"])))


def _size(folder: Path) -> int:
    """Bytes of all files on the disk; those that are deleted meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total
