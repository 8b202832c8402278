"""Acknowledgements for one member, and for sixteen, while other connections send hello without
pause."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imap_wal.agent.config import AgentConfig
from tests.agent.harness import Plugin, config, serve_in_process

FLOODING = 16
"""Connections of the flood."""
_FORK = multiprocessing.get_context("fork")


def run(seconds: int) -> list[dict[str, Any]]:
    rows = []
    for callers in (1, 16):
        with tempfile.TemporaryDirectory() as name, _agent(Path(name)) as settings:
            _rate(settings, callers, 1)
            alone = [_rate(settings, callers, seconds)]
            with _flood(settings):
                flooded = [_rate(settings, callers, seconds) for _ in range(3)]
            alone.append(_rate(settings, callers, seconds))
        rows.append(
            {
                "measurement": f"appends during a flood of hellos on {FLOODING} connections, "
                f"{callers} "
                "callers",
                "median": round(statistics.median(flooded)),
                "least": round(min(flooded)),
                "most": round(max(flooded)),
                "unit": "acknowledgements/s",
                "ratio": round(statistics.median(flooded) / statistics.median(alone), 2),
                "to": f"without the flood, {statistics.median(alone):,.0f}/s",
                "target": 0.5,
            }
        )
    return rows


@contextmanager
def _agent(folder: Path) -> Iterator[AgentConfig]:
    settings = config(folder)
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=serve_in_process, args=(settings, theirs))
    process.start()
    ours.recv_bytes()
    try:
        yield settings
    finally:
        process.terminate()
        process.join()


@contextmanager
def _flood(settings: AgentConfig) -> Iterator[None]:
    process = _FORK.Process(target=_hellos, args=(settings,))
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _hellos(settings: AgentConfig) -> None:
    connected = [
        Plugin(settings.endpoint, uuid=f"flood-{number}", member=f"flood-{number}")
        for number in range(FLOODING)
    ]
    while True:
        for number in [
            (each, each.client.post("hello", each.about(purpose="read"))) for each in connected
        ]:
            number[0].client.answer(number[1])


def _rate(settings: AgentConfig, callers: int, seconds: int) -> float:
    """Appends per second. Each caller has its own session."""
    members = [
        Plugin(settings.endpoint, uuid=f"caller-{number}", member=f"caller-{number}")
        for number in range(callers)
    ]
    until = time.monotonic() + seconds
    counts = [0] * callers

    def call(number: int) -> None:
        members[number].hello()
        while time.monotonic() < until:
            assert members[number].put(a="1")[0] == "ack"
            counts[number] += 1

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for member in members:
        member.close()
    return sum(counts) / seconds
