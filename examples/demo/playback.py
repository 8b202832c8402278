"""Plays the stream in a child process, kills the process, and computes from the acknowledgements
alone what the maps must have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from examples.demo import flights
from examples.demo.flights import State, Stream
from examples.demo.writer import ACK, WINDOW
from imap_wal.clock import Clock
from rewrite_cli.console.failures import Failed

ROOT = Path(__file__).parents[2]
"""Where the package `examples` is."""
SAMPLE_S = 0.1


@dataclass(slots=True)
class Timeline:
    """Events, with times in seconds since the start: acknowledged records of each producer, opens,
    phases."""

    samples: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    """Opens of the log: after what, from, to."""
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    """Other phases: name, from, to."""


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """Memory compared with the reference. `lost`: keys that differ from their last acknowledged
    change. `unacknowledged`: keys with a change whose response the kill prevented, which is
    allowed."""

    entries: int
    lost: int
    unacknowledged: int
    examples: tuple[str, ...] = ()


class Playback:
    """One stream, played in as many runs as needed. `kind` and `target` select what the writer
    writes to."""

    def __init__(self, stream: Stream, folder: Path, clock: Clock, kind: str, target: str) -> None:
        self.stream, self.kind, self.target = stream, kind, target
        self.acknowledged = [0] * flights.PRODUCERS
        """Per producer: its steps below this number are acknowledged."""
        self.records = [0] * flights.PRODUCERS
        self.timeline = Timeline()
        self.seconds = 0.0
        """The time that the writing took."""
        self._clock, self._start = clock, clock.monotonic()
        self._steps = folder / "steps.msgpack"
        self._steps.write_bytes(msgpack.packb(stream.steps))
        self._states: list[State] = [{} for _ in range(flights.PRODUCERS)]
        self._applied = [0] * flights.PRODUCERS
        self._window = 1 if kind == "embedded" else WINDOW
        self.commits = sum(map(len, stream.steps))

    def now(self) -> float:
        return self._clock.monotonic() - self._start

    def run(
        self, until: float, kill: Callable[[], None] | None, watch: Callable[[int], None]
    ) -> None:
        """Continue after the last acknowledged step. With `kill`: after the fraction `until` of all
        steps is acknowledged, send SIGKILL to the writer and call `kill` (to end other processes).
        Returns when the writer has ended and its last acknowledgement is read. Raises `Failed` if
        the writer fails."""
        # The writer may be ahead of what is read here, by half of the rest.
        end = 1.0 if kill is None else (1 + until) / 2
        command = [
            sys.executable,
            "-m",
            "examples.demo.writer",
            self.kind,
            self.target,
            str(self._steps),
            *map(str, self.acknowledged),
            *(str(int(end * len(steps))) for steps in self.stream.steps),
        ]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        assert writer.stdout is not None
        began, sampled, killed = None, 0.0, False
        target = until * self.commits
        rest = b""
        try:
            while data := os.read(writer.stdout.fileno(), 65536):
                began = began if began is not None else self.now()
                rest = self._take(rest + data)
                now = self.now()
                if now - sampled >= SAMPLE_S:
                    sampled = now
                    self.timeline.samples.append((now, tuple(self.records)))
                    watch(sum(self.records))
                if kill is not None and not killed and sum(self.acknowledged) >= target:
                    writer.kill()
                    kill()
                    killed = True
        finally:
            writer.kill()
            _, complaint = writer.communicate()
        self.timeline.samples.append((self.now(), tuple(self.records)))
        self.seconds += self.now() - (began if began is not None else self.now())
        if not killed and sum(self.acknowledged) < self.commits:
            raise Failed(
                f"the demo's writer stopped early: {_reason(complaint.decode(errors='replace'))}"
            )

    def _take(self, data: bytes) -> bytes:
        whole = len(data) - len(data) % ACK.size
        for producer, number in ACK.iter_unpack(data[:whole]):
            assert number == self.acknowledged[producer]
            self.acknowledged[producer] = number + 1
            self.records[producer] += len(self.stream.steps[producer][number][1])
        return data[whole:]

    # ---- the reference ----

    def compare(self, actual: Mapping[str, Iterable[tuple[str, Any]]]) -> MemoryCheck:
        """`actual`: map name → restored entries."""
        restored = {name: dict(entries) for name, entries in actual.items()}
        lost = unacknowledged = 0
        examples: list[str] = []
        for producer in range(flights.PRODUCERS):
            expected = self._reference(producer)
            allowed = self._allowed(producer)
            for name in {*expected, *restored}:
                wanted = expected.get(name, {})
                present = {
                    key: value
                    for key, value in restored.get(name, {}).items()
                    if flights.producer(key) == producer
                }
                for key in {*wanted, *present}:
                    if present.get(key) == wanted.get(key):
                        continue
                    if present.get(key) in allowed.get((name, key), ()):
                        unacknowledged += 1
                    else:
                        lost += 1
                        examples.append(
                            f"{name}[{key!r}] is {present.get(key)}, but acknowledged was "
                            f"{wanted.get(key)}"
                        )
        return MemoryCheck(
            sum(map(len, restored.values())), lost, unacknowledged, tuple(examples[:5])
        )

    def _reference(self, producer: int) -> State:
        state = self._states[producer]
        for step in self.stream.steps[producer][
            self._applied[producer] : self.acknowledged[producer]
        ]:
            flights.apply(state, step)
        self._applied[producer] = self.acknowledged[producer]
        return state

    def _allowed(self, producer: int) -> dict[tuple[str, str], list[Any]]:
        """Other values that a key may have: of steps that may have been in flight."""
        allowed: dict[tuple[str, str], list[Any]] = {}
        first = self.acknowledged[producer]
        for name, changes in self.stream.steps[producer][first : first + self._window]:
            for key, value in changes:
                allowed.setdefault((name, key), []).append(value)
        return allowed


def _reason(complaint: str) -> str:
    """The line of a traceback that names the error."""
    lines = [
        line
        for line in complaint.splitlines()
        if line and not line[0].isspace() and not line.startswith("Traceback")
    ]
    return lines[0] if lines else "it printed nothing"
