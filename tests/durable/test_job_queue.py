"""A durable queue of jobs: `Store.queue`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import imap_wal
from imap_wal.embedded.asyncio_store import AsyncStore
from imap_wal.errors import Closed, ImapWalError, InvalidSetting
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore, forget
from tests.kit.effort import share, step
from tests.support import FakeClock, Threads, copy_files, embedded

numbers = count()


def test_jobs_are_taken_in_order_and_acknowledged_once(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        queue = store.queue("jobs")
        put = [queue.put(f"job {number}") for number in range(3)]
        assert put == sorted(set(put)) and len(queue) == 3
        jobs = [queue.take(timeout=0) for _ in range(4)]
        assert [job and job.value for job in jobs] == ["job 0", "job 1", "job 2", None]
        first = jobs[0]
        assert first is not None and first.number == put[0] and first.attempt == 1
        assert queue.ack(first) and not queue.ack(first) and not queue.nack(first)
        assert len(queue) == 2 and repr(queue) == "<JobQueue 'jobs' of 2, 2 taken>"
    assert "closed" in repr(queue)
    with pytest.raises(Closed):
        queue.take(timeout=0)


def test_a_job_given_back_is_the_next_one(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        queue = store.queue("jobs")
        for value in "ab":
            queue.put(value)
        job = queue.take()
        assert job is not None and queue.nack(job) and not queue.ack(job)
        again = queue.take()
        assert again is not None
        assert (again.number, again.value, again.attempt) == (job.number, "a", 2)
        assert not queue.ack(job) and queue.ack(again)


def test_a_job_comes_back_after_its_lease(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        queue = store.queue("jobs")
        for value in "ab":
            queue.put(value)
        late = queue.take(lease=10)
        clock.advance(9.999)
        assert late is not None and (job := queue.take(timeout=0)) is not None and job.value == "b"
        assert queue.take(timeout=0) is None
        clock.advance(0.001)
        again = queue.take(lease=10)
        assert again is not None and (again.value, again.attempt) == ("a", 2)
        assert not queue.ack(late) and not queue.nack(late)
        clock.advance(11)  # no one else has taken it yet
        assert queue.ack(again)
        for lease in (0, -1, True, "60", float("nan")):
            with pytest.raises(InvalidSetting):
                queue.take(lease=lease)  # type: ignore[arg-type]


def test_a_queue_continues_after_a_restart(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        queue = store.queue("jobs")
        assert store.queue("jobs") is queue
        before = [queue.put(value) for value in "abc"]
        assert queue.take(lease=60) is not None
    clock.advance(-3600)  # the clock was set back
    with embedded(memory, clock=clock) as store:
        queue = store.queue("jobs")
        assert queue.put("d") > before[-1]
        assert [(job.value) for _ in range(3) if (job := queue.take(timeout=0))] == ["b", "c", "d"]
        clock.advance(2 * 3600)
        again = [queue.take(timeout=0) for _ in range(4)]
        assert sorted(job.value for job in again if job and job.attempt == 2) == list("abcd")
    assert sorted(embedded_maps(memory)) == ["jobs.leased"]


def test_a_map_with_other_keys_is_no_queue(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("text")["a"] = 1
        store.map("pair")[("a", 1)] = 1
        store.map("mixed").update({1: 1, "a": 1})
        for name in ("text", "pair", "mixed"):
            with pytest.raises(
                InvalidSetting, match=f"map '{name}' (has the key|cannot be sorted)"
            ):
                store.queue(name)


@pytest.mark.parametrize("lease", [0, -1, float("nan"), True, None])
def test_the_error_of_a_lease_names_it(memory: MemoryStore, lease: Any) -> None:
    with embedded(memory) as store, pytest.raises(InvalidSetting, match=r"^lease is "):
        store.queue("jobs").take(lease=lease, timeout=0)


def embedded_maps(memory: MemoryStore) -> list[str]:
    with embedded(memory) as store:
        return store.maps()


def test_a_waiting_taker_gets_the_next_job(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        queue = store.queue("jobs")
        got: list[Any] = []
        threads = Threads(*[lambda: got.append(queue.take())] * 3)
        for value in range(3):
            queue.put(value)
        threads.join()
        assert sorted(job.value for job in got) == [0, 1, 2]
        assert queue.take(timeout=0.001) is None


def test_no_two_threads_get_one_job(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        queue = store.queue("jobs")
        for value in range(40):
            queue.put(value)
        done: list[list[int]] = [[] for _ in range(4)]

        def work(mine: list[int]) -> None:
            while (job := queue.take(timeout=0)) is not None:
                assert queue.ack(job)
                mine.append(job.value)

        Threads(*(lambda mine=mine: work(mine) for mine in done)).join()
        assert sorted(chain.from_iterable(done)) == list(range(40)) and len(queue) == 0


def test_tasks_share_a_queue(memory: MemoryStore) -> None:
    async def main() -> None:
        async with AsyncStore(embedded(memory)) as store:
            queue = store.queue("jobs")
            done: list[int] = []

            async def work() -> None:
                while (job := await queue.take(timeout=1)) is not None and job.value != "end":
                    if job.attempt == 1 and job.value % 3 == 0:
                        assert await queue.nack(job)
                    else:
                        assert await queue.ack(job) and not await queue.ack(job)
                        done.append(job.value)

            workers = [asyncio.create_task(work()) for _ in range(4)]
            await asyncio.gather(*(queue.put(value) for value in range(20)))
            while len(done) < 20:  # noqa: ASYNC110  # the workers do not tell
                await asyncio.sleep(0)
            await asyncio.gather(*(queue.put("end") for _ in workers))
            await asyncio.gather(*workers)
            assert sorted(done) == list(range(20))
            assert await queue.take(timeout=0) is None
            assert len(queue) == 4 and "AsyncJobQueue 'jobs'" in repr(queue)

    asyncio.run(main())


class QueueMachine(RuleBasedStateMachine):
    """A queue that is closed, killed and compacted; the model has every job that was put."""

    @initialize()
    def begin(self) -> None:
        self.clock, self.name = FakeClock(), f"queue-{next(numbers)}"
        self.waiting: list[int] = []
        self.leases: dict[int, tuple[float, imap_wal.Job]] = {}
        self.old: list[imap_wal.Job] = []
        self.next = 0
        self.open()

    def open(self) -> None:
        self.storage = FaultyStore(MemoryStore(self.name))
        self.store = embedded(self.storage, clock=self.clock, segment_bytes=3000)
        self.queue = self.store.queue("q")

    @rule()
    def put(self) -> None:
        self.queue.put(self.next)
        self.waiting.append(self.next)
        self.next += 1

    @rule(lease=st.sampled_from([0.5, 5, 60]))
    def take(self, lease: float) -> None:
        now = self.clock.monotonic()
        job = self.queue.take(lease=lease, timeout=0)
        ended = [(end, value) for value, (end, _) in self.leases.items() if end <= now]
        if ended:
            _, value = min(ended)
            self.old.append(self.leases.pop(value)[1])
        elif self.waiting:
            value = self.waiting.pop(0)
        else:
            assert job is None
            return
        assert job is not None and job.value == value
        self.leases[value] = now + lease, job

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), back=st.booleans())
    def end(self, data: Any, back: bool) -> None:
        value = data.draw(st.sampled_from(sorted(self.leases)))
        _, job = self.leases.pop(value)
        assert self.queue.nack(job) if back else self.queue.ack(job)
        self.old.append(job)
        if back:
            self.waiting = sorted([*self.waiting, value])

    @precondition(lambda self: self.old)
    @rule(data=st.data(), back=st.booleans())
    def use_an_old_lease(self, data: Any, back: bool) -> None:
        job = data.draw(st.sampled_from(self.old))
        assert not (self.queue.nack(job) if back else self.queue.ack(job))

    @rule(seconds=st.sampled_from([0.4, 3, 90]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def archive(self) -> None:
        self.store.archive()

    @rule(kill=st.booleans())
    def reopen(self, kill: bool) -> None:
        if kill:
            self.storage.plan = Plan((Fault("kill"),))
            self.storage._seen = [0]
            with pytest.raises(Killed):
                self.storage.exists("anything")
        else:
            self.store.close()
        self.open()

    @invariant()
    def every_job_is_there_until_it_is_acknowledged(self) -> None:
        if hasattr(self, "queue"):
            assert len(self.queue) == len(self.waiting) + len(self.leases)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            forget(self.name)


def test_a_queue_equals_its_model_through_kills() -> None:
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=share(80),
            stateful_step_count=30,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_kill_at_any_storage_call_loses_no_job() -> None:
    """And what was acknowledged is not given again."""

    put: list[int] = []
    acked: list[int] = []
    ending: list[int] = []

    def run(store: imap_wal.Store) -> None:
        queue = store.queue("q")
        for value in range(4):
            queue.put(value)
            put.append(value)
        for _ in range(2):
            job = queue.take()
            assert job is not None
            ending.append(job.value)
            assert queue.ack(job)
            acked.append(job.value)

    whole = FaultyStore(MemoryStore())
    with embedded(whole) as store:
        run(store)
    for at in range(1, whole.count + 1, min(step(), 5)):
        inner = MemoryStore()
        put.clear()
        acked.clear()
        ending.clear()
        with (
            suppress(ImapWalError, Killed),
            embedded(FaultyStore(inner, Plan((Fault("kill", at=at),)))) as store,
        ):
            run(store)
        left = []
        clock = FakeClock(4_000_000_000_000)
        with embedded(copy_files(inner), takeover=True, clock=clock) as again:
            queue = again.queue("q")
            while (job := queue.take(timeout=0, lease=86_400)) is not None:
                left.append(job.value)
        assert left == sorted(set(left)) and not set(left) & set(acked), f"killed at {at}"
        assert set(put) - set(ending) <= set(left) <= {*put, len(put)}, f"killed at {at}"


def _work_until_killed(url: str, done: Any) -> None:
    store = imap_wal.open(url, takeover=True)
    queue = store.queue("jobs")

    def work() -> None:
        while True:
            job = queue.take(lease=0.2)
            assert job is not None
            if queue.ack(job):
                os.write(done.fileno(), job.value.to_bytes(4, "big"))

    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    threading.Event().wait()


def test_kill_minus_9_of_workers_loses_no_job(tmp_path: Path) -> None:
    """A job whose acknowledgement was seen is never given again."""
    url, jobs = str(tmp_path / "log"), 60
    with imap_wal.open(url) as store:
        queue = store.queue("jobs")
        for value in range(jobs):
            queue.put(value)
    context = multiprocessing.get_context("forkserver")
    seen: list[int] = []
    for wanted in (10, 25):
        reader, writer = context.Pipe(duplex=False)
        worker = context.Process(target=_work_until_killed, args=(url, writer))
        worker.start()
        writer.close()
        while len(seen) < wanted:
            seen.append(int.from_bytes(os.read(reader.fileno(), 4), "big"))
        os.kill(worker.pid or 0, signal.SIGKILL)
        while data := os.read(reader.fileno(), 4):
            seen.append(int.from_bytes(data, "big"))
        worker.join()
    left = []
    with imap_wal.open(url, takeover=True) as store:
        queue = store.queue("jobs")
        while len(queue):
            job = queue.take(lease=100)
            assert job is not None and queue.ack(job)
            left.append(job.value)
    assert len(seen) == len(set(seen)) and not set(seen) & set(left)
    # Of each worker that was killed, an acknowledgement may not have been seen.
    assert len({*seen, *left}) >= jobs - 2 * 3
