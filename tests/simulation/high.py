"""H2, H3, H5, H6 and H7: actors that produce their histories, and each fix reverted.

H1 is about memory and H8 about sizes: the simulation measures neither. Random schedules of so many
actors rarely meet these histories, so each has a small plan, tried with one long pause.

python -m tests.simulation.high        how many schedules each takes
"""

from __future__ import annotations

import errno
from typing import Any

from imap_wal import layout
from imap_wal.agent.membership import claims
from imap_wal.agent.reads import reads
from imap_wal.errors import ImapWalError, LostRace
from imap_wal.manifest.snapshots import NO_VERSIONS
from imap_wal.read import cluster, scan
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.rewrite import conflicts, drop, part_writer, plan, tally
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import Result, RewritePlan
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.sorted_runs import Sizes
from imap_wal.rules import counts
from imap_wal.worker import Worker
from storage_backends import NotFound, StorageError
from tests.simulation import runs, threads
from tests.simulation.actors import MAP, MEMORY, Actor, Op, Spec, Stage, key_of
from tests.simulation.agents import AgentActor
from tests.simulation.attempts import TwoAttempts
from tests.simulation.drills import DRILLS, ORDERS, _spec
from tests.simulation.explore import Order
from tests.simulation.history import ACKED
from tests.simulation.medium import APPEND
from tests.simulation.members import MemberActor
from tests.simulation.mutation import Mutation, Put, caught_by_drills
from tests.simulation.mutations import _parts_are_created_again
from tests.simulation.runs import Plan, Survivor
from tests.simulation.world import Violation

RANGES = Sizes(range_bytes=1, group_rows=2)

# ---- actors --------------------------------------------------------------------------------------


class Maintainer(Actor):
    def rewrite_once(self) -> None:
        """No other actor covers or removes anything: a rewrite need not begin again."""
        begun = 0

        class Counting(LocalEngine):
            def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
                nonlocal begun
                begun += 1
                return super().run(plan, log)

        try:
            rewrite(self.cluster(), Counting(MEMORY))
        except (ImapWalError, StorageError) as error:
            raise Violation("a rewrite gives up", repr(error)) from error
        if begun > 1:
            raise Violation("a rewrite begins again", "because of an archive run")

    def rewrite_in_ranges(self) -> None:
        """Several ranges of keys, with one part for each row."""
        kept = part_writer.PART_ROWS_MAX
        part_writer.PART_ROWS_MAX = 1
        try:
            rewrite(self.cluster(), Ranges(self, kills=False, sizes=RANGES))
        except (ImapWalError, StorageError) as error:
            self._refused(error, *self._rewrite_errors())
        finally:
            part_writer.PART_ROWS_MAX = kept

    def rewrite_until_now(self) -> None:
        """With `--as-of`, a rewrite may drop no tombstone."""
        try:
            rewrite(self.cluster(), LocalEngine(MEMORY), as_of_ms=self.process.clock.now_ms() - 1)
        except (ImapWalError, StorageError) as error:
            self._refused(error, LostRace, NotFound)

    def drop(self) -> None:
        """Drop the map once its acknowledged changes leave it empty: it must stay empty."""
        newest = [
            max(
                (write for write in writes if write.outcome == ACKED), key=lambda write: write.start
            )
            for writes in self.past.writes.values()
            if any(write.outcome == ACKED for write in writes)
        ]
        if newest and all(write.value is None for write in newest):
            drop_map(self.cluster(), MAP)


class Ranges(TwoAttempts):
    attempts = 1


class FullAgent(AgentActor):
    def scratch_is_full(self, times: int) -> None:
        """The next merges of this agent's reads fail with an error of the operating system."""
        index = self.agent._reads._view._index
        add, left = index.add, [times]

        def fails(*arguments: Any, **named: Any) -> None:
            if left[0]:
                left[0] -= 1
                raise OSError(errno.ENOSPC, "No space left on device", "the scratch file")
            add(*arguments, **named)

        index.add = fails  # type: ignore[method-assign]


class Member(MemberActor):
    def put_and_leave(self, number: int) -> None:
        """Like the method of the base class, but the process runs until its agent has answered or
        ended. So the run does not end before the change is in the log."""
        try:
            super().put_and_leave(number)
        finally:
            connection = self._connection
            while connection is not None and not connection.answers and not connection.gone:
                threads._block(connection)

    def put_also(self, number: int) -> None:
        """In the other half of a split network: this member also acts as the owner, at the same
        version of the partition."""
        self._count += 1
        self._append_own(number, 0, b"%s.%d" % (self.spec.name.encode(), self._count))

    def expect(self, number: int) -> None:
        """Read a listing, which must succeed and have this key."""
        for _ in range(4):
            answer = self._read("keys", "m", None, 100)
            if answer is not None:
                if key_of(number) not in answer[1]:
                    raise Violation("an acknowledged change is lost", f"{key_of(number)!r}")
                return
            threads._pause()
        raise Violation("a read is never answered", "there is room again")


def _operate(plan: Plan, stage: Stage, older: Any, op: Op) -> bool:
    if op[0] != "resolve":
        return _operate_as_ever(plan, stage, older, op)
    survivor = Survivor(stage, stage.media, plan.seed * 64 + 41, "the operator's resolve")
    log = survivor.cluster()
    view = MaterializedView(log, MEMORY)
    view.catch_up()
    met, said = view.statistics.conflicts, conflicts.found(log)
    if met != len(said):
        raise Violation("verify and a restore do not find the same conflicts", f"{met}, {said}")
    if met:
        rewrite(log, LocalEngine(MEMORY), resolve=Resolution())
        for key, value in survivor.listing().items():  # the losing changes were put aside
            writes = stage.past.writes[key]
            stage.past.writes[key] = [write for write in writes if write.value == value]
    return False


_operate_as_ever, runs._operate = runs._operate, _operate
runs.ROLES |= {"maintainer": Maintainer, "agent": FullAgent, "a member": Member}
# ---- plans ---------------------------------------------------------------------------------------


def _member(name: str, node: str, *ops: Op) -> Spec:
    return Spec(name, (ops,), node, role="a member")


def _agent(name: str, node: str = "n1") -> Spec:
    return Spec(name, ((("serve",),),), node, role="agent")


_LATE = (
    _agent("agent 1"),
    _member("member 1", "n1", ("put", 0), ("put_and_leave", 0)),
    _agent("agent 2", "n2"),
    _member("member 2", "n2", ("take", 0), ("delete", 0)),
)
_ONCE = "a change that comes after a rewrite has dropped the tombstone"
_LATER = "a change that comes after a second rewrite has dropped the tombstone"
_DROPPED = "a change that comes after its map was dropped"
_SPLIT = "both halves of a split network change a key"
_ARCHIVES = "a rewrite beside archive runs"
_FULL = "an agent whose scratch is full"
_RANGES = "a rewrite in ranges"
_PROGRAM = "a program that writes when the first members come"


def _late(*ops: Op) -> Plan:
    keeper = Spec("keeper", (ops,), role="maintainer")
    return Plan(APPEND, "empty", (*_LATE, keeper), acknowledged=2)


PLANS: dict[str, Plan] = {
    _ARCHIVES: Plan(
        APPEND, "some",
        (
            _spec("A", ("open", False), ("put", 0), ("archive",), ("put", 1), ("archive",)),
            Spec("keeper", ((("rewrite_once",),),), role="maintainer"),
        ),
        acknowledged=2,
    ),
    _FULL: Plan(
        APPEND, "members",
        (
            Spec("agent", ((("serve",),), (("scratch_is_full", 1),)), role="agent"),
            _member("member", "n1", ("put", 0), ("list",), ("expect", 0)),
        ),
        acknowledged=1,
    ),
    _RANGES: Plan(
        APPEND, "archived",
        (Spec("keeper", ((("rewrite_in_ranges",), ("prune",)),), role="maintainer"),),
        after=(("prune",),),
        acknowledged=0,
    ),
    _ONCE: _late(("rewrite",), ("prune",)),
    _LATER: _late(("rewrite_until_now",), ("rewrite",), ("prune",)),
    _DROPPED: _late(("drop",), ("prune",)),
    _SPLIT: Plan(
        APPEND, "empty",
        (
            _agent("agent 1"), _member("member 1", "n1", ("put", 0), ("put", 1)),
            _agent("agent 2", "n2"), _member("member 2", "n2", ("put_also", 0)),
        ),
        after=(("resolve",),),
        acknowledged=3,
    ),
    _PROGRAM: Plan(
        APPEND, "empty",
        (
            Spec(
                "program", ((("open", False), ("put", 6), ("put", 7), ("put", 6)),), "n3",
                settings=(("shared", True),),
            ),
            _agent("agent"), _member("member", "n1", ("put", 0), ("list",)),
        ),
        exclusive=False,
        acknowledged=4,
    ),
}  # fmt: skip
"""Each is run with one long pause of every actor at every call."""

_AFTER_ALL: tuple[Order, ...] = (((1,), 0, (2, 3, 4)), ((2, 1), 0, (3, 4)))
CHOSEN: dict[str, tuple[Order, ...]] = {
    _FULL: (((), 0, (1, 2)), ((1,), 0, (2,))),
    _ONCE: _AFTER_ALL,
    _LATER: _AFTER_ALL,
    _DROPPED: _AFTER_ALL,
    _SPLIT: (((1,), 0, (2, 3)), ((3,), 2, (0, 1))),
}

DRILLS |= PLANS
ORDERS |= CHOSEN

# ---- the code before the fixes -------------------------------------------------------------------


def _a_rewrite_does_not_go_on(put: Put) -> None:
    def read_on(
        self: Any, each: Any, maps: Any = None, attempts: int = 0, context: Any = None
    ) -> Any:
        return scan.read_scan(context or self.context, each, maps)

    put(cluster.ClusterLog, "read_on", read_on)


def _a_thread_dies_unseen(put: Put) -> None:
    def run(self: Any) -> None:
        try:
            while not self.stopping.is_set():
                self._turn(self)
        except Exception:  # the thread ends, as in Python without a handler
            pass

    def answer(self: Any, asked: Any) -> Any:
        try:
            return real_answer(self, asked)
        finally:
            if foreign:
                raise foreign.pop()

    foreign: list[BaseException] = []
    real_answer, failed = reads.Reads._answer, Worker.failed

    def failed_and_kept(self: Any, error: BaseException, **more: Any) -> None:
        failed(self, error, **more)
        foreign.append(error)

    put(Worker, "failed", failed_and_kept)
    put(Worker, "_run", run)
    put(reads.Reads, "_answer", answer)
    put(reads.Reads, "unanswered", lambda self: [])


def _ranges_share_their_names(put: Put) -> None:
    def part_path(self: Any, name: str, partition: int, number: int, token: str) -> str:
        folder = layout.snapshot_folder(self.folder, name, self.generation)
        return f"{folder}/part-{number:05d}.parquet"

    put(plan.RewritePlan, "part_path", part_path)
    _parts_are_created_again(put)


def _owners_are_not_compared(put: Put) -> None:
    put(counts, "_not_overtaken", lambda rows, overtaken: [True] * len(rows))


def _a_snapshot_teaches_nothing(put: Put) -> None:
    add = tally.Tally.add

    def without(self: Any, changes: Any, *, count_bytes: bool, settled: bool = False) -> None:
        wanted = self.pairs_wanted
        self.pairs_wanted = wanted and not settled
        add(self, changes, count_bytes=count_bytes, settled=settled)
        self.pairs_wanted = wanted

    put(tally.Tally, "add", without)


def _a_drop_keeps_nothing(put: Put) -> None:
    put(drop, "_versions_of", lambda *_: NO_VERSIONS)


def _no_search_for_conflicts(put: Put) -> None:
    put(conflicts, "find", lambda *_, **__: iter(()))


def _programs_are_left_alone(put: Put) -> None:
    put(claims, "shut_out_others", lambda *_, **__: [])


MUTATIONS = (
    Mutation(
        "C7", "the first members leave a program alone", _programs_are_left_alone,
        (_PROGRAM,), "programs",
    ),
    Mutation(
        "H2", "a rewrite begins again when a segment is archived", _a_rewrite_does_not_go_on,
        (_ARCHIVES,), _ARCHIVES,
    ),
    Mutation(
        "H3", "an unexpected error ends a thread of the agent", _a_thread_dies_unseen,
        (_FULL,), _FULL,
    ),
    Mutation(
        "H5", "the ranges of a map have the same part names", _ranges_share_their_names,
        (_RANGES,), _RANGES,
    ),
    Mutation(
        "H6", "changes of owners that were replaced count", _owners_are_not_compared,
        (_ONCE,), _ONCE,
    ),
    Mutation(
        "H6", "partition versions of a snapshot's tombstones are lost", _a_snapshot_teaches_nothing,
        (_LATER,), _LATER,
    ),
    Mutation(
        "H6", "a drop loses partition versions", _a_drop_keeps_nothing, (_DROPPED,), _DROPPED
    ),
    Mutation(
        "H7", "verify looks for no conflict of order", _no_search_for_conflicts,
        (_SPLIT,), _SPLIT,
    ),
)  # fmt: skip


def main() -> None:
    for mutation in MUTATIONS:
        number, what = caught_by_drills(mutation)
        print(f"{mutation.name}: schedule {number}: {what[:140]}", flush=True)


if __name__ == "__main__":
    main()
