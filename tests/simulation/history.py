"""The requests and answers of a run, and the states that they allow.

A write is open from its call to its answer (an error, or the death of its process, ends it too). A
read that was open from `start` to `end` may return a write that began before `end`, was not surely
refused, and was not followed, before `start`, by an acknowledged write that began after its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tests.simulation.world import Violation

ACKED, FAILED, UNKNOWN, PENDING = "acknowledged", "refused", "unknown", "under way"


@dataclass(slots=True, eq=False)
class Write:
    """A change of one key; the value None deletes it."""

    key: bytes
    value: bytes | None
    writer: str
    start: float
    end: float = inf
    outcome: str = PENDING
    order: tuple[int, ...] = ()
    """If it has one: a read returns nothing that is lower than what is acknowledged."""
    safe: bool = True
    """Whether it survives a power loss once it is acknowledged."""

    def __str__(self) -> str:
        what = "delete" if self.value is None else self.value.decode(errors="replace")
        return f"{what} by {self.writer} [{self.start:g}–{self.end:g}] {self.outcome}"


@dataclass(slots=True)
class Writer:
    """One open store of a group in which one at a time may acknowledge."""

    name: str
    opened: float
    last_acked: float = -1.0
    """When its last acknowledged write began."""


class History:
    def __init__(self) -> None:
        self.writes: dict[bytes, list[Write]] = {}
        self.additions: dict[str, list[Write]] = {}
        """Each adds 1 to the number of its key."""
        self.writers: list[Writer] = []
        self.acked = 0

    def copy(self) -> History:
        """A copy of a history that has ended."""
        other = History()
        other.writes = {key: list(writes) for key, writes in self.writes.items()}
        other.additions = {key: list(writes) for key, writes in self.additions.items()}
        other.acked = self.acked
        return other

    # ---- writes ----

    def begin(self, key: bytes, value: bytes | None, writer: str, step: float) -> Write:
        write = Write(key, value, writer, step)
        self.writes.setdefault(key, []).append(write)
        return write

    def begin_addition(self, key: str, writer: str, step: float) -> Write:
        addition = Write(key.encode(), b"+1", writer, step)
        self.additions.setdefault(key, []).append(addition)
        return addition

    def finish(self, write: Write, outcome: str, step: float) -> None:
        write.end, write.outcome = step, outcome
        self.acked += outcome == ACKED

    def power_lost(self) -> None:
        """Changes acknowledged under `interval` or `os`, and not synced, may be there or not."""
        for writes in (*self.writes.values(), *self.additions.values()):
            for write in writes:
                if write.outcome == ACKED and not write.safe:
                    write.outcome = UNKNOWN

    def opened(self, name: str, step: float) -> Writer:
        writer = Writer(name, step)
        self.writers.append(writer)
        return writer

    def acknowledged(self, writer: Writer, start: float) -> None:
        """`Violation` when two writers acknowledge what was asked after both were open."""
        writer.last_acked = max(writer.last_acked, start)
        for other in self.writers:
            if other is not writer:
                both = max(writer.opened, other.opened)
                if writer.last_acked > both and other.last_acked > both:
                    raise Violation(
                        "two writers acknowledge",
                        f"{writer.name} and {other.name}, both open since step {both:g}",
                    )

    # ---- reads ----

    def check(
        self,
        found: dict[bytes, bytes],
        start: float,
        end: float,
        who: str,
        *,
        partial: bool = False,
    ) -> None:
        """`Violation` unless a read from `start` to `end` may return this. `partial`: keys that are
        not in `found` were not asked for."""
        for key, value in found.items():
            if key not in self.writes:
                raise Violation("a change that was never made", f"{who} has {key!r}: {value!r}")
        for key, writes in self.writes.items():
            if key in found:
                self._check_key(writes, found[key], start, end, who)
            elif not partial:
                self._check_key(writes, None, start, end, who)

    def check_numbers(self, numbers: dict[str, int], start: float, end: float, who: str) -> None:
        """`Violation` unless an open from `start` to `end` may have these numbers: of each, all
        acknowledged additions, none twice, and none that never began. Each that adds 1 to `in`
        takes 1 from `out` in the same commit."""
        for key in {*numbers, *self.additions} - {"out"}:
            additions = self.additions.get(key, [])
            least = sum(write.outcome == ACKED and write.end < start for write in additions)
            most = sum(write.outcome != FAILED and write.start <= end for write in additions)
            if not least <= numbers.get(key, 0) <= most:
                raise Violation(
                    "an addition is lost or counts twice",
                    f"{who}: {key} is {numbers.get(key, 0)}, of {least} to {most}",
                )
        if numbers.get("in", 0) + numbers.get("out", 0):
            raise Violation("a transaction is not whole", f"{who}: {numbers}")

    def _check_key(
        self, writes: list[Write], value: bytes | None, start: float, end: float, who: str
    ) -> None:
        settled = max(
            (write.start for write in writes if write.outcome == ACKED and write.end < start),
            default=-inf,
        )
        highest = max(
            (write.order for write in writes if write.outcome == ACKED and write.end < start),
            default=(),
        )
        candidates = [
            write
            for write in writes
            if write.value == value and (not write.order or write.order >= highest)
        ]
        for write in candidates:
            counts = write.end >= settled or (write.order and write.order >= highest)
            if write.start <= end and write.outcome != FAILED and counts:
                return
        if value is None and settled == -inf:
            return
        newest = max(
            (write for write in writes if write.outcome == ACKED and write.end < start),
            key=lambda write: write.start,
            default=None,
        )
        if value is None:
            rule, what = "an acknowledged change is lost", "nothing"
        elif newest is not None and newest.value is None:
            rule, what = "a deletion came back", str(candidates[0]) if candidates else repr(value)
        else:
            rule, what = "an old value", str(candidates[0]) if candidates else repr(value)
        raise Violation(rule, f"{who} at step {start:g}–{end:g} has {what}, newest is: {newest}")

    def rebase(self, state: dict[bytes, bytes]) -> None:
        """A backup was restored on purpose: from here on its contents are the state."""
        keys = set(self.writes) | set(state)
        self.writes = {key: [] for key in keys}
        for key in keys:
            self.writes[key].append(Write(key, state.get(key), "the backup", -1, -1, ACKED))
