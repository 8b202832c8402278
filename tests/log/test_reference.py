"""Random histories of a log against a list of what was acknowledged. Hypothesis prints the blob
that replays a failure; `seed` prints its own."""

from __future__ import annotations

import itertools
import random
import threading
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from imap_wal import log
from imap_wal.errors import Fenced, PositionGone
from imap_wal.log import START, LogReader, Position, Record
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore, forget
from tests.kit.effort import share
from tests.log.log_processes import child, tail_until
from tests.support import Threads

NAMES = st.sampled_from(["m", "../other", "third"])
CHANGES = st.lists(
    st.tuples(st.binary(max_size=3), st.one_of(st.none(), st.binary(max_size=120))),
    min_size=1,
    max_size=4,
)
_numbers = itertools.count()


class Reference(RuleBasedStateMachine):
    """A log that is rotated, archived, shrunk, closed, killed, taken over; the model is a list of
    (position, map, key, value)."""

    @initialize(segment_bytes=st.sampled_from([200, 1000]), preallocate=st.booleans())
    def begin(self, segment_bytes: int, preallocate: bool) -> None:
        self.name = f"log-reference-{next(_numbers)}"
        self.options: dict[str, Any] = {"segment_bytes": segment_bytes, "preallocate": preallocate}
        self.model: list[tuple[Position, str, bytes, bytes | None]] = []
        self.oldest = START
        self.storage = FaultyStore(MemoryStore(self.name))
        self.log = log.create(self.storage.url, storage=self.storage, **self.options)
        self.reader = LogReader(self.storage.url, storage=MemoryStore(self.name))
        self.follow(START)

    def follow(self, start: Position) -> None:
        """A tail that reads one pass further each time."""
        self.seen = [place for place, *_ in self.model if place < start]
        self.stop = threading.Event()
        self.tail = self.reader.tail(start, poll_s=0, stop=self.stop)

    @rule(name=NAMES, changes=CHANGES)
    def append(self, name: str, changes: list[tuple[bytes, bytes | None]]) -> None:
        first = self.log.append(name, *changes)
        assert all(first > place for place, *_ in self.model)
        self.model += [
            (first._replace(index=first.index + number), name, *change)
            for number, change in enumerate(changes)
        ]

    @rule()
    def rotate(self) -> None:
        self.log.rotate()

    @rule()
    def archive(self) -> None:
        self.log.archive()

    @rule(data=st.data(), follow=st.booleans())
    def shrink(self, data: st.DataObject, follow: bool) -> None:
        if self.model:
            upto = data.draw(st.sampled_from([place for place, *_ in self.model]))
            if follow:
                self.catch_up()
            self.oldest = self.log.shrink(upto, uncovered=True)

    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        self.open()

    @rule()
    def take_over(self) -> None:
        old = self.log
        self.open(takeover=True)
        with suppress(Fenced):
            old.close()

    @rule(seed=st.integers(0, 99))
    def kill_and_reopen(self, seed: int) -> None:
        self.storage.plan, self.storage._seen = Plan((Fault("kill"),), seed), [0]
        try:
            self.storage.exists("anything")
        except Killed:
            pass
        self.storage = FaultyStore(MemoryStore(self.name))
        self.open()

    def open(self, takeover: bool = False) -> None:
        self.log = log.open(
            self.storage.url, storage=self.storage, takeover=takeover, **self.options
        )

    @rule(data=st.data(), text=st.booleans(), after=st.booleans())
    def read_from_anywhere(self, data: st.DataObject, text: bool, after: bool) -> None:
        places = [place for place, *_ in self.model] or [START]
        start = data.draw(st.sampled_from(places))
        start = start.after() if after else start
        for source in (self.log, self.reader):
            try:
                found = list(source.read(str(start) if text else start))
            except PositionGone as error:
                oldest = error.oldest
            else:
                oldest = ""
                assert found == self.expected(start)
            assert oldest == (str(self.oldest) if start < self.oldest else "")

    @rule()
    def catch_up(self) -> None:
        """The tail gets all new entries, or an error that they were removed."""
        expected = [place for place, *_ in self.model]
        try:
            while len(self.seen) < len(expected):
                record = next(self.tail)
                self.seen.append(record.position)
        except PositionGone:
            assert len(self.seen) < len([place for place in expected if place < self.oldest])
            self.follow(self.oldest)
            self.catch_up()
        assert self.seen == expected

    @invariant()
    def what_is_left_is_what_was_appended(self) -> None:
        if hasattr(self, "log"):
            assert list(self.reader.read()) == list(self.log.read()) == self.expected(self.oldest)

    def expected(self, start: Position) -> list[Any]:
        class Same:
            def __init__(self, place: Position, name: str, key: bytes, value: bytes | None) -> None:
                self.what = (place, name, key, value)

            def __eq__(self, other: object) -> bool:
                assert isinstance(other, Record)
                return (
                    other.position,
                    other.entry.map,
                    other.entry.key,
                    other.entry.value,
                ) == self.what

            def __repr__(self) -> str:
                return f"{self.what}"

        return [Same(*each) for each in self.model if each[0] >= start]

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            forget(self.name)


def test_a_log_equals_a_list() -> None:
    run_state_machine_as_test(
        Reference,
        settings=settings(
            max_examples=share(80),
            stateful_step_count=25,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_readers_in_threads_and_processes_see_the_same(url: str, seed: int) -> None:
    """Several threads write the log meanwhile, and it is rotated, archived, closed and opened
    again."""
    chance = random.Random(seed)
    log.create(url).close()
    acknowledged: dict[str, bytes | None] = {}
    done = threading.Event()
    seen: list[list[Record]] = [[] for _ in range(3)]

    def follow(mine: list[Record]) -> None:
        for record in LogReader(url).tail(START, poll_s=0.003):
            mine.append(record)
            if record.entry.value == b"end":
                return

    def look() -> None:
        """A read from an acknowledged position returns its entry first, at once."""
        while not done.is_set():
            known = list(acknowledged.items())
            if known:
                place, value = known[random.randrange(len(known))]
                first = next(LogReader(url).read(place))
                assert (str(first.position), first.entry.value) == (place, value)

    def write(opened: log.Log, thread: int, life: int) -> None:
        for number in range(25):
            value = b"%d.%d.%d" % (life, thread, number) + b"x" * ((number * 37) % 400)
            place = opened.append(f"m{number % 3}", (b"k", value))
            acknowledged[str(place)] = value

    with child(tail_until, url, str(START), b"end") as (_, pipe):
        readers = Threads(*[lambda mine=mine: follow(mine) for mine in seen], look)
        for life in range(4):
            with log.open(url, segment_bytes=chance.choice((500, 3000))) as opened:
                writers = Threads(
                    *[
                        lambda thread=thread, life=life, opened=opened: write(opened, thread, life)
                        for thread in range(3)
                    ]
                )
                for _ in range(chance.randrange(4)):
                    chance.choice((opened.archive, opened.rotate, opened.sync))()
                writers.join()
        with log.open(url) as opened:
            acknowledged[str(opened.append("m0", (b"k", b"end")))] = b"end"
        done.set()
        readers.join()
        expected = sorted(acknowledged.items())
        for mine in seen:
            assert [(str(record.position), record.entry.value) for record in mine] == expected
        assert [pipe.recv() for _ in expected] == expected
