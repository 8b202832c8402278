"""The ring buffer loses nothing, reorders nothing, and never exceeds its bounds."""

from __future__ import annotations

import threading

import pytest

from imap_wal.errors import InvalidSetting
from imap_wal.write.ring import RingBuffer
from tests.support import Threads


@pytest.mark.parametrize("slots", [0, 3, -4, 1000])
def test_a_ring_takes_a_power_of_two_of_slots(slots: int) -> None:
    with pytest.raises(InvalidSetting, match="power of two"):
        RingBuffer(slots)


def test_a_full_ring_refuses_and_overwrites_nothing() -> None:
    ring: RingBuffer[int] = RingBuffer(4)
    assert [ring.try_publish(item) for item in range(6)] == [True] * 4 + [False] * 2
    assert ring.take() == [0, 1, 2, 3]
    ring.advance(1)
    assert ring.try_publish(4)
    assert not ring.try_publish(5)
    assert ring.take() == [1, 2, 3, 4]
    assert ring.statistics.published == 5
    assert ring.statistics.waiting == 4
    assert ring.statistics.waits == 3


def test_eight_producers_lose_nothing_and_keep_order() -> None:
    """Eight producers of twenty thousand lose nothing and keep their order."""
    ring: RingBuffer[tuple[int, int]] = RingBuffer(64)
    consuming = threading.Lock()
    producers, each = 8, 20_000
    got: list[list[int]] = [[] for _ in range(producers)]

    def consume() -> None:
        with consuming:
            taken = ring.take()
            assert len(taken) <= 64
            for number, item in taken:
                got[number].append(item)
            ring.advance(len(taken))

    def produce(number: int) -> None:
        for item in range(each):
            while not ring.try_publish((number, item)):
                consume()  # as a caller of the committer does

    Threads(*(lambda number=number: produce(number) for number in range(producers))).join()
    consume()
    assert got == [list(range(each))] * producers
    assert ring.statistics.waiting == 0


def test_waiting_bytes_are_bounded_except_one_large_item() -> None:
    """Waiting bytes are bounded; an item above the bound enters only an empty ring."""
    ring: RingBuffer[str] = RingBuffer(16, bytes_max=100)
    assert ring.try_publish("a", 60)
    assert not ring.try_publish("b", 41)
    assert ring.try_publish("c", 40)
    assert not ring.try_publish("giant", 1000)
    ring.advance(2)
    assert ring.try_publish("giant", 1000)
    assert not ring.try_publish("d", 1)
    assert ring.statistics.waiting_bytes == 1000
    ring.advance(1)
    assert ring.statistics.waiting_bytes == 0
    assert ring.try_publish("d", 1)


def test_take_is_bounded_but_returns_at_least_one() -> None:
    """`take` stops at a number of bytes, but returns at least one item."""
    ring: RingBuffer[str] = RingBuffer(8)
    for item, size in (("a", 10), ("b", 10), ("c", 100), ("d", 1)):
        assert ring.try_publish(item, size)
    assert ring.take(20) == ["a", "b"]
    ring.advance(2)
    assert ring.take(20) == ["c"]
    ring.advance(1)
    assert ring.take(20) == ["d"]


def test_a_ring_keeps_nothing_alive_that_was_consumed() -> None:
    ring: RingBuffer[object] = RingBuffer(4)
    assert ring.try_publish(object())
    ring.advance(1)
    assert ring._slots == [None] * 4
