"""Queues, ringbuffers and reliable topics whose items are in the log."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hazelcast.errors import HazelcastError

from tests.cluster.cluster import Cluster
from tests.cluster.history import PROPERTIES, Now, Scene, log_view, written
from tests.cluster.values import CLIENT_OPTIONS
from tests.cluster.waiting import until

CAPACITY = 10_000
"""Of a ringbuffer, by default."""


@written
def jobs(scene: Scene) -> list[str]:
    """What is left of a queue."""
    queue = scene.client.get_queue("jobs").blocking()
    queue.add_all([f"job {number}" for number in range(100)])
    for _ in range(10):
        queue.poll()
    assert queue.remove("job 50")
    queue.offer("the last one")
    return [f"job {number}" for number in range(10, 100) if number != 50] + ["the last one"]


@written
def events(scene: Scene) -> int:
    """How many items a ringbuffer has had: more than it keeps."""
    ringbuffer = scene.client.get_ringbuffer("events").blocking()
    count = CAPACITY + 500
    for first in range(0, count, 500):
        ringbuffer.add_all([f"event {number}" for number in range(first, first + 500)])
    return count


@written
def news(scene: Scene) -> None:
    topic = scene.client.get_reliable_topic("news").blocking()
    topic.publish_all([f"message {number}" for number in range(20)])


def test_a_queue_is_as_it_was_before_the_kill(now: Now) -> None:
    queue = now.client.get_queue("jobs").blocking()
    expected = now.written("jobs")
    assert list(queue.iterator()) == expected
    assert queue.size() == len(expected)
    assert queue.contains("the last one") and not queue.contains("job 50")


def test_a_ringbuffer_is_as_it_was_before_the_kill(now: Now) -> None:
    ringbuffer = now.client.get_ringbuffer("events").blocking()
    count = now.written("events")
    assert (ringbuffer.head_sequence(), ringbuffer.tail_sequence()) == (count - CAPACITY, count - 1)
    assert ringbuffer.read_one(count - CAPACITY) == f"event {count - CAPACITY}"
    assert list(ringbuffer.read_many(count - 3, 3, 10)) == [
        f"event {number}" for number in range(count - 3, count)
    ]


def test_the_log_has_no_more_of_a_ringbuffer_than_memory(now: Now) -> None:
    view = log_view(now.cluster.url)
    try:
        assert sum(map(len, view.keys("ringbuffer:events"))) == CAPACITY
    finally:
        view.close()


def test_a_topic_has_the_messages_from_before_the_kill(now: Now) -> None:
    now.written("news")
    ringbuffer = now.client.get_ringbuffer("_hz_rb_news").blocking()
    assert ringbuffer.tail_sequence() == 19


@dataclass
class Work:
    """What clients know of a queue: each item is a number of its own."""

    offered: list[int] = field(default_factory=list)
    perhaps: set[int] = field(default_factory=set)
    polled: list[int] = field(default_factory=list)
    lost_polls: int = 0
    """Polls without an answer: each may have taken an item."""

    def run(self, queue: Any, first: int, seed: int) -> None:
        """Offer and poll, until the cluster is gone."""
        chance = random.Random(seed)
        for item in range(first, first + 400):
            try:
                queue.offer(item)
                self.offered.append(item)
            except (HazelcastError, OSError):
                self.perhaps.add(item)
            if chance.random() < 0.4:
                try:
                    taken: Any = queue.poll()
                    if taken is not None:
                        self.polled.append(taken)
                except (HazelcastError, OSError):
                    self.lost_polls += 1

    def wait_for(self, count: int, running: Future[None]) -> None:
        until(f"{count} items are offered", lambda: len(self.offered) > count or running.done())


@pytest.mark.thorough
def test_no_acknowledged_item_is_lost_over_kills(tmp_path: Path, classpath: str, seed: int) -> None:
    """Members die while clients offer and poll, and then everything. An item is lost only to a poll
    whose answer was."""
    work = Work()
    with (
        Cluster(
            tmp_path, classpath, lambda _endpoint: {}, offsets_ms=(0, 0), properties=PROPERTIES
        ) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        cluster.start(2)
        for number in range(3):
            client = cluster.client(**CLIENT_OPTIONS, invocation_timeout=5)
            queue = client.get_queue("jobs").blocking()
            enough = len(work.offered) + 100
            running = pool.submit(work.run, queue, number * 10_000, seed + number)
            work.wait_for(enough, running)
            if number == 1:
                cluster.members[seed % 2].kill()
                cluster.agents[seed % 2].kill()
                work.wait_for(enough + 100, running)
            cluster.kill_everything()
            running.result()
            cluster.start(2)
        queue = cluster.client().get_queue("jobs").blocking()
        left = list(queue.iterator())
    assert left == sorted(left), "items are in the order in which they were offered"
    assert len(set(left)) == len(left), "an item is in the queue twice"
    assert not set(left) & set(work.polled), "an item was polled and is still there"
    missing = set(work.offered) - set(left) - set(work.polled)
    assert len(missing) <= work.lost_polls, (seed, missing, work.lost_polls)
    assert set(left) | set(work.polled) <= set(work.offered) | work.perhaps
