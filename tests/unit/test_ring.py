"""The ring buffer loses nothing, reorders nothing, holds no more than it may."""

from __future__ import annotations

import threading

import pytest

from imap_wal.errors import InvalidSetting
from imap_wal.write.ring import RingBuffer
from tests.support import Threads, eventually


@pytest.mark.parametrize("slots", [0, 3, -4, 1000])
def test_a_ring_takes_a_power_of_two_of_slots(slots: int) -> None:
    with pytest.raises(InvalidSetting, match="power of two"):
        RingBuffer(slots)


def test_a_full_ring_refuses_and_overwrites_nothing() -> None:
    ring: RingBuffer[int] = RingBuffer(4)
    consumer = ring.consumer()
    assert [ring.try_publish(item) for item in range(6)] == [True] * 4 + [False] * 2
    assert not ring.publish(9, timeout=0.01)
    assert consumer.take() == [0, 1, 2, 3]
    consumer.advance(1)
    assert ring.try_publish(4)
    assert not ring.try_publish(5)
    assert consumer.take() == [1, 2, 3, 4]
    assert ring.statistics.published == 5
    assert ring.statistics.waiting == 4
    assert ring.statistics.waits >= 4


def test_eight_producers_of_twenty_thousand_lose_nothing_and_keep_their_order() -> None:
    ring: RingBuffer[tuple[int, int]] = RingBuffer(64)
    consumer = ring.consumer()
    producers, each = 8, 20_000
    got: list[list[int]] = [[] for _ in range(producers)]

    def produce(number: int) -> None:
        for item in range(each):
            assert ring.publish((number, item))

    def consume() -> None:
        while sum(map(len, got)) < producers * each:
            assert consumer.wait(30)
            taken = consumer.take()
            assert 0 < len(taken) <= 64
            for number, item in taken:
                got[number].append(item)
            consumer.advance(len(taken))

    Threads(consume, *(lambda number=number: produce(number) for number in range(producers))).join()
    assert got == [list(range(each))] * producers
    assert ring.statistics.waiting == 0


def test_every_consumer_sees_everything_and_the_slowest_holds_producers_back() -> None:
    ring: RingBuffer[int] = RingBuffer(8)
    fast, slow = ring.consumer(), ring.consumer()
    for item in range(8):
        assert ring.try_publish(item)
    assert fast.take() == list(range(8))
    fast.advance(8)
    assert not ring.try_publish(8), "the slow one has not read slot 0"
    slow.advance(3)
    assert [ring.try_publish(item) for item in (8, 9, 10, 11)] == [True, True, True, False]
    assert fast.take() == [8, 9, 10]
    assert slow.take() == [3, 4, 5, 6, 7, 8, 9, 10]


def test_a_consumer_begins_with_what_is_published_after_it_was_made() -> None:
    ring: RingBuffer[str] = RingBuffer(8)
    first = ring.consumer()
    ring.publish("before")
    late = ring.consumer()
    ring.publish("after")
    assert first.take() == ["before", "after"]
    assert late.take() == ["after"]


def test_a_consumer_that_closes_lets_waiting_producers_go_on() -> None:
    ring: RingBuffer[int] = RingBuffer(2)
    reader, idle = ring.consumer(), ring.consumer()
    for item in range(2):
        ring.publish(item)
    reader.advance(2)
    waiting = Threads(lambda: ring.publish(2))
    eventually(lambda: ring.statistics.waits, "the producer found the ring full")
    idle.close()
    waiting.join()
    idle.close()
    assert reader.take() == [2]


def test_waiting_bytes_are_bounded_and_an_item_above_the_bound_enters_an_empty_ring_alone() -> None:
    ring: RingBuffer[str] = RingBuffer(16, bytes_max=100)
    consumer = ring.consumer()
    assert ring.try_publish("a", 60)
    assert not ring.try_publish("b", 41)
    assert ring.try_publish("c", 40)
    assert not ring.try_publish("giant", 1000)
    consumer.advance(2)
    assert ring.try_publish("giant", 1000)
    assert not ring.try_publish("d", 1)
    assert ring.statistics.waiting_bytes == 1000
    consumer.advance(1)
    assert ring.statistics.waiting_bytes == 0
    assert ring.try_publish("d", 1)


def test_take_stops_at_a_number_of_bytes_but_gives_at_least_one() -> None:
    ring: RingBuffer[str] = RingBuffer(8)
    consumer = ring.consumer()
    for item, size in (("a", 10), ("b", 10), ("c", 100), ("d", 1)):
        ring.publish(item, size)
    assert consumer.take(20) == ["a", "b"]
    consumer.advance(2)
    assert consumer.take(20) == ["c"]
    consumer.advance(1)
    assert consumer.take(20) == ["d"]


def test_a_sleeping_consumer_is_woken_and_one_with_nothing_to_do_gives_up() -> None:
    ring: RingBuffer[int] = RingBuffer(2)
    consumer = ring.consumer()
    assert not consumer.wait(0.001)
    woken = threading.Event()
    sleeper = Threads(lambda: consumer.wait() and woken.set())
    ring.publish(1)
    sleeper.join()
    assert woken.is_set()


def test_a_ring_keeps_nothing_alive_that_was_consumed() -> None:
    ring: RingBuffer[object] = RingBuffer(4)
    consumer = ring.consumer()
    ring.publish(object())
    consumer.advance(1)
    assert ring._slots == [None] * 4
