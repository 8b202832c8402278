"""Random histories of a stream against a list of what was acknowledged. Hypothesis prints the blob
that replays a failure."""

from __future__ import annotations

import itertools
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

import imap_wal.stream as stream
from imap_wal.context import Context
from imap_wal.errors import Conflict, Fenced, OutcomeUnknown
from imap_wal.log import LogReader
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.serializer import MsgpackSerializer
from imap_wal.stream import Mark, StreamRecord, Transaction
from imap_wal.stream.partition import Partition
from imap_wal.stream.reading import follow
from imap_wal.stream.transaction import LOCKS, REQUESTS, TRANSACTIONS, key_of, record_of
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore, forget
from tests.kit.effort import share
from tests.kit.logs import SMALL

NAMES = st.lists(st.sampled_from("abcd"), max_size=2, unique=True)
_numbers = itertools.count()


class Reference(RuleBasedStateMachine):
    """A stream of one partition. The model is the list of its transactions; a lock's newest writer
    and the transaction of a request follow from it."""

    @initialize(lock_table_bytes=st.sampled_from([2**20, 300]))
    def begin(self, lock_table_bytes: int) -> None:
        self.name = f"stream-reference-{next(_numbers)}"
        self.exact = lock_table_bytes > 1000
        self.options: dict[str, Any] = {
            "segment_bytes": 2000,
            "lock_table_bytes": lock_table_bytes,
        }
        self.model: list[tuple[Transaction, str]] = []
        self.marks = [Mark(0)]
        self.storage = FaultyStore(MemoryStore(self.name))
        self.open()

    def open(self, **options: Any) -> None:
        self.bank = stream.open(
            self.storage.url, partitions=1, storage=self.storage, **self.options, **options
        )

    def newest(self, lock: str) -> int:
        return max(
            (
                id
                for id, (transaction, _) in enumerate(self.model, 1)
                if lock in (*transaction.write, *transaction.append)
            ),
            default=0,
        )

    @rule(
        read=NAMES,
        write=NAMES,
        append=NAMES,
        old=st.integers(0, 4),
        request=st.sampled_from(["", "", "r1", "r2", "r3"]),
        kill_at=st.one_of(st.none(), st.none(), st.integers(1, 6)),
        seed=st.integers(0, 9),
    )
    def submit(
        self,
        read: list[str],
        write: list[str],
        append: list[str],
        old: int,
        request: str,
        kill_at: int | None,
        seed: int,
    ) -> None:
        transaction = Transaction(len(self.model), read, write, append)
        seen = Mark(0, max(0, len(self.model) - old))
        known = {name: id for id, (_, name) in enumerate(self.model, 1) if name}
        blocked = any(self.newest(lock) > seen.id for lock in (*read, *write))
        if kill_at:
            self.plan(Fault("kill", kill_at), seed)
        try:
            mark = self.bank.submit(0, transaction, mark=seen, request=request)
        except Conflict:
            assert request not in known
            assert blocked or not self.exact
            return
        except (Killed, OutcomeUnknown, Fenced):
            assert kill_at
            self.reopen_after_kill(transaction, request)
            return
        finally:
            self.storage.plan = Plan()
        assert mark is not None
        if request in known:
            assert mark.id == known[request]
            return
        assert not blocked
        self.model.append((transaction, request))
        self.marks.append(mark)
        assert mark.id == len(self.model)

    def reopen_after_kill(self, transaction: Transaction, request: str) -> None:
        """What was not acknowledged may be in the log or not; by its request, its author knows."""
        self.storage = FaultyStore(MemoryStore(self.name))
        self.open(takeover=True)
        records = list(self.bank.read())
        if len(records) > len(self.model):
            self.model.append((transaction, request))
            self.marks.append(records[-1].mark)

    def plan(self, fault: Fault, seed: int) -> None:
        self.storage.plan, self.storage._seen = Plan((fault,), seed), [0]

    @rule()
    def close_and_reopen(self) -> None:
        self.bank.close()
        self.open()

    @rule()
    def take_over(self) -> None:
        old = self.bank
        self.open(takeover=True)
        with suppress(Fenced):
            old.close()

    @rule()
    def archive(self) -> None:
        self.bank.archive()

    @rule(whole=st.booleans(), removes=st.booleans())
    def rewrite(self, whole: bool, removes: bool) -> None:
        logs = ClusterLog(Context(MemoryStore(self.name)), "default", "stream")
        rewrite(logs, LocalEngine(SMALL), maps=None if whole else (LOCKS, REQUESTS))
        if removes:
            prune(logs)

    @invariant()
    def the_stream_is_the_list(self) -> None:
        if not hasattr(self, "bank"):
            return
        expected = [
            (id, transaction.data, transaction.write, request)
            for id, (transaction, request) in enumerate(self.model, 1)
        ]
        assert [self.content(record) for record in self.bank.read()] == expected
        middle = self.marks[len(self.marks) // 2]
        assert [record.id for record in self.bank.read(0, middle)] == list(
            range(middle.id + 1, len(self.model) + 1)
        )
        reader = LogReader(
            self.storage.url,
            storage=MemoryStore(self.name),
            cluster="stream",
            node="0-of-1",
            only=TRANSACTIONS,
        )
        others = iter(follow(reader, Mark(0)).__next__, None)
        serializer = MsgpackSerializer()
        records = [record_of(logged, serializer) for logged in others if logged]
        assert [self.content(record) for record in records] == expected
        partition = self.bank._partitions[0]
        assert isinstance(partition, Partition)
        locks = partition._opened.locks
        for lock in "abcd":
            newest = locks.newest(key_of(0, lock))
            assert newest >= self.newest(lock)
            assert newest == self.newest(lock) or not self.exact

    def content(self, record: StreamRecord) -> tuple[Any, ...]:
        return record.id, record.data, record.write, record.request

    def teardown(self) -> None:
        if hasattr(self, "bank"):
            with suppress(Fenced):
                self.bank.close()
            forget(self.name)


def test_a_stream_equals_a_list() -> None:
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
