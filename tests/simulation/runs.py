"""One run: a plan, played under one schedule and judged; and how it is printed and shrunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import imap_wal
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE
from imap_wal.errors import ImapWalError, LogError, MissingNode
from imap_wal.manifest import store
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.security.encryption import keys_from
from rewrite_cli.console.failures import Failed
from storage_backends import NotFound, StorageError
from tests.encrypted import key_variable
from tests.simulation import threads
from tests.simulation.actors import (
    CLUSTER,
    MAP,
    MEMORY,
    NAMESPACE,
    NUMBERS,
    SETTINGS,
    Actor,
    Spec,
    Stage,
    verify,
)
from tests.simulation.agents import AgentActor, Alone
from tests.simulation.choosers import Replay, as_runs
from tests.simulation.history import ACKED, History
from tests.simulation.medium import Medium, open_sim
from tests.simulation.members import MemberActor
from tests.simulation.wires import Wires
from tests.simulation.world import Chooser, Fault, Process, Step, Violation, World


@dataclass(frozen=True)
class Plan:
    """What happens, without its order. `faults`: (process, call) → kind of fault. `after`: what an
    operator does when all have ended, before the log is opened again."""

    kind: str
    prologue: str
    specs: tuple[Spec, ...]
    faults: Mapping[tuple[str, int], str] = field(default_factory=dict)
    after: tuple[tuple[Any, ...], ...] = ()
    exclusive: bool = True
    seed: int = 0
    manifests_kept: int = 64
    """How many manifests are kept; with few, old ones are deleted while another process sleeps."""
    acknowledged: int = 0
    """A drill's: how many changes are acknowledged when its actors run one after the other."""
    refused: int = 0
    """A drill's: how many of its operations are then refused, as they must be."""


ROLES: dict[str, type[Actor]] = {"embedded": Actor, "agent": AgentActor, "member": MemberActor}


@dataclass
class Result:
    violation: Violation | None
    cause: BaseException | None
    world: World
    steps: int
    calls: dict[str, int]
    acked: int
    """Changes that were acknowledged in the run, without those of its preparation."""
    refused: int
    """Operations that ended with an allowed error."""
    tasks: int

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The schedule, as `Replay` takes it."""
        return as_runs(self.world.choices)

    @property
    def trace(self) -> list[Step]:
        return self.world.trace


KEYS = key_variable("a", "plain")
ENCRYPTED_EACH = 3
"""One of this number of runs is encrypted. Its prologue is not: unencrypted files are read too."""


def play(plan: Plan, chooser: Chooser) -> Result:
    """Inside of `installed()`."""
    from tests.simulation.prologues import prepared

    media, past = prepared(plan.kind, plan.prologue)
    acked = past.acked
    world = World(chooser)
    if plan.seed % ENCRYPTED_EACH == 0:
        world.keys = KEYS
    threads.enter(world)
    kept, store.KEEP = store.KEEP, plan.manifests_kept
    try:
        world.extra_ms = 3_600_000
        stage = Stage(world, plan.kind, media, past)
        stage.exclusive = plan.exclusive
        older = {name: medium.copy() for name, medium in media.items()} if plan.after else {}
        stage.wires = Wires()
        world.on_death.append(lambda process: _unlock(media, process))
        world.on_death.append(stage.wires.broken)
        world.on_power.append(lambda: _lose_power(media, plan.seed))
        world.on_power.append(past.power_lost)
        for index, spec in enumerate(plan.specs):
            process = world.process(spec.name, spec.machine, spec.offset_ms, plan.seed * 64 + index)
            process.faults = {
                call: Fault(kind) for (name, call), kind in plan.faults.items() if name == spec.name
            }
            actor = ROLES[spec.role](stage, process, spec)
            actor.start()
        world.run()
        acked, refused = past.acked - acked, stage.refused
        if world.violation is None:
            try:
                _epilogue(plan, stage, older)
            except Violation as error:
                world.violate(error, error.__cause__)
        return Result(
            world.violation, world.cause, world, world.step,
            {process.name: process.calls for process in world.processes}, acked, refused,
            len(world.tasks),
        )  # fmt: skip
    finally:
        store.KEEP = kept
        threads.enter(None)
        world.close()


def _unlock(media: Mapping[str, Medium], process: Process) -> None:
    for medium in media.values():
        for path in [path for path, held in medium.locks.items() if held[2] is process]:
            del medium.locks[path]


def _lose_power(media: Mapping[str, Medium], seed: int) -> None:
    for medium in media.values():
        medium.lose_power(Random(seed))


# ---- after the run -------------------------------------------------------------------------------


class Survivor:
    """Opens and reads when all others have ended."""

    def __init__(self, stage: Stage, media: dict[str, Medium], seed: int, name: str) -> None:
        world = World(stage.world.chooser)
        world.keys = stage.world.keys
        world.extra_ms = stage.world.elapsed_ms + 120_000  # leases are over
        self.world, self.stage, self.media, self.name = world, stage, media, name
        machine = next((process.machine for process in stage.world.processes), "a")
        self.process = world.process(name, machine or "a", 0, seed)
        self.spec = Spec(name, ())

    def storage(self) -> Any:
        return open_sim(self.world, self.process, self.media, self.stage.kind)

    def context(self) -> Context:
        keys = keys_from(self.world.keys)
        return Context(self.storage(), keys, self.process.clock, self.process.randomness)

    def cluster(self) -> ClusterLog:
        return ClusterLog(self.context(), NAMESPACE, CLUSTER)

    def open(self, node: str = "n1") -> Any:
        return imap_wal.open(
            "sim://", namespace=NAMESPACE, cluster=CLUSTER, node=node, takeover=True,
            clock=self.process.clock, randomness=self.process.randomness, storage=self.storage(),
            encryption_keys=self.world.keys, **SETTINGS,
        )  # fmt: skip

    def listing(self) -> dict[bytes, bytes]:
        view = MaterializedView(self.cluster(), MEMORY)
        view.catch_up()
        return {row[KEY]: row[VALUE] for rows in view.rows(MAP, 2) for row in rows}


def _memory(store: Any) -> dict[bytes, bytes]:
    map = store.map(MAP, raw=True)
    return {key: map[key] for key in map}


def _epilogue(plan: Plan, stage: Stage, older: dict[str, Medium]) -> None:
    for name, start, end in stage.copies:
        _judge_copy(plan, stage, name, start, end)
    lost = False
    for op in plan.after:
        lost |= _operate(plan, stage, older, op)
    if not (stage.damaged or stage.forgotten or stage.spread("a")) and plan.seed % 4 == 1:
        survivor = Survivor(stage, stage.media, plan.seed * 64 + 45, "verify")
        verify(survivor.context())
    if any(spec.role == "agent" for spec in plan.specs):
        _judge_cluster(plan, stage)
        return
    _judge(plan, stage, stage.media, "the log", stage.past, may_refuse=stage.damaged, lost=lost)


def _operate(plan: Plan, stage: Stage, older: dict[str, Medium], op: tuple[Any, ...]) -> bool:
    """What an operator does between two runs. Returns whether changes may be lost."""
    what, *more = op
    survivor = Survivor(stage, stage.media, plan.seed * 64 + 40, f"the operator's {what}")
    try:
        if what == "rewrite":
            from imap_wal.rewrite.local_engine import LocalEngine
            from imap_wal.rewrite.run import rewrite

            rewrite(survivor.cluster(), LocalEngine(MEMORY))
        elif what == "prune":
            from imap_wal.rewrite.prune import prune

            prune(survivor.cluster())
    except (ImapWalError, StorageError) as error:
        if not stage.damaged:
            raise Violation("maintenance fails", f"{survivor.name}: {error!r}") from error
    if what == "restored":
        folder, gone = more
        stage.damaged = True
        for name, medium in stage.media.items():
            if name in older:
                _restore_folder(medium, older[name], folder)
        return bool(gone)
    if what == "repair":
        _judge_repair(plan, stage, survivor, *more)
    if what == "remove newest":
        stage.damaged = True
        (folder,) = more
        paths = sorted(path for path in stage.media["root"].files if path.startswith(folder))
        if paths:
            del stage.media["root"].files[paths[-1]]
    return False


def _judge_repair(plan: Plan, stage: Stage, operator: Survivor, mode: str) -> None:
    """A repaired copy must open. If the log was not damaged, the copy has all of it."""
    from imap_wal.inspect.inventory import looks_at
    from imap_wal.repair.cluster import ClusterRepair

    context, media = operator.context(), {"root": Medium()}
    target = open_sim(operator.world, operator.process, media, stage.kind)
    try:
        for view in looks_at(context):
            repair = ClusterRepair(context, view, mode, lambda _: True, lambda _: None)
            repair.plan()
            repair.write(target)
    except Failed:
        if not stage.damaged:
            raise
        return
    except (ImapWalError, StorageError) as error:
        raise Violation("repair fails", f"{mode}: {error!r}") from error
    past = stage.past.copy()
    _judge(plan, stage, media, f"the copy that repair made ({mode})", past, lost=stage.damaged)


def _restore_folder(medium: Medium, older: Medium, folder: str) -> None:
    """Restore a folder, as from a backup: it has its files of that time, and others are
    removed."""
    for path in [path for path in medium.files if path.startswith(folder)]:
        del medium.files[path]
    for path, file in older.copy().files.items():
        if path.startswith(folder):
            medium.files[path] = file


def _judge_copy(plan: Plan, stage: Stage, name: str, start: float, end: float) -> None:
    media = {"root": stage.media[name]}
    past = stage.past.copy()
    _judge(plan, stage, media, name, past, may_refuse=True, read=(start, end))


def _judge(
    plan: Plan, stage: Stage, media: dict[str, Medium], what: str, past: History, *,
    may_refuse: bool = False, lost: bool = False, read: tuple[float, float] | None = None,
) -> None:  # fmt: skip
    """Open, change, close, open again, list: all must agree with each other and with the past."""
    world = stage.world
    start, end = read or (world.tick(), world.tick())
    survivor = Survivor(stage, media, plan.seed * 64 + 50, "the survivor")
    try:
        store = survivor.open()
    except (LogError, MissingNode) as error:
        if may_refuse or (
            isinstance(error, MissingNode) and stage.spread(survivor.process.machine)
        ):
            return
        raise Violation("the log does not open", f"{what}: {error}") from error
    except (ImapWalError, StorageError) as error:
        if may_refuse and isinstance(error.__cause__, NotFound):
            return  # it names the missing file
        raise Violation("the log does not open", f"{what}: {error!r}") from error
    found = _memory(store)
    if not lost:
        past.check(found, start, end, f"the open of {what}")
        past.check_numbers(dict(store.map(NUMBERS)), start, end, f"the open of {what}")
    if lost or read:
        past.rebase(found)
    key, value = b"k0", b"survivor.1"
    try:
        store.map(MAP, raw=True).put(key, value)
        store.close()
        if plan.seed % 8 > 2:
            return
        found[key] = value
        survivor = Survivor(stage, media, plan.seed * 64 + 51, "the second survivor")
        if plan.seed % 2:
            again = survivor.listing()
        else:
            store = survivor.open()
            again = _memory(store)
            store.close()
    except (ImapWalError, StorageError) as error:
        raise Violation("the log does not open again", f"{what}: {error!r}") from error
    if again != found:
        raise Violation("two opens differ", f"{what}: {found}, and then {again}")


def _judge_cluster(plan: Plan, stage: Stage) -> None:
    """Judge a cluster in which agents write: list, let an agent of each node write, list again,
    twice."""
    world, past = stage.world, stage.past
    nodes = sorted({spec.node for spec in plan.specs if spec.role == "agent"})
    for attempt in range(2 if plan.seed % 4 == 0 else 1):
        survivor = Survivor(stage, stage.media, plan.seed * 64 + 50 + attempt, "the survivor")
        try:
            found = survivor.listing()
            past.check(found, world.tick(), world.tick(), f"listing {attempt + 1} of the log")
            for node in nodes:
                agent = Alone(survivor, node, f"survivors {attempt}")
                agent.hello()
                if node != nodes[0]:  # a key has one owner
                    agent.close()
                    continue
                write = past.begin(b"k0", b"survivor %d" % attempt, "the survivor", world.tick())
                agent.change(b"k0", b"survivor %d" % attempt)
                past.finish(write, ACKED, world.tick())
                agent.close()
            again = survivor.listing()
        except (ImapWalError, StorageError) as error:
            raise Violation("the log does not open", f"attempt {attempt + 1}: {error!r}") from error
        if again != {**found, b"k0": b"survivor %d" % attempt}:
            raise Violation("two reads differ", f"{found}, then {again}")


# ---- shrinking and printing ---------------------------------------------------------------------


def replay(plan: Plan, runs: list[tuple[int, int]]) -> Result:
    return play(plan, Replay(runs))


def shrink(
    plan: Plan, runs: list[tuple[int, int]], rule: str
) -> tuple[Plan, list[tuple[int, int]]]:
    """Find the same violation with fewer operations, faults and switches."""

    def fails(plan: Plan, runs: list[tuple[int, int]]) -> bool:
        found = replay(plan, runs).violation
        return found is not None and found.rule == rule

    if not fails(plan, runs):
        return plan, runs
    changed = True
    while changed:
        changed = False
        for smaller in _smaller_plans(plan):
            if fails(smaller, runs):
                plan, changed = smaller, True
                break
    changed = True
    while changed:
        changed = False
        for index in range(len(runs) - 1, -1, -1):
            for shorter in _shorter(runs, index):
                if fails(plan, shorter):
                    runs = as_runs_of(replay(plan, shorter).runs, shorter)
                    changed = True
                    break
            if changed:
                break
    return plan, runs


def as_runs_of(
    actual: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The shorter way to say it."""
    return actual if len(actual) < len(asked) else asked


def _shorter(runs: list[tuple[int, int]], index: int) -> list[list[tuple[int, int]]]:
    found = [runs[:index] + runs[index + 1 :]]
    if 0 < index < len(runs) - 1 and runs[index - 1][0] == runs[index + 1][0]:
        joined = (runs[index - 1][0], runs[index - 1][1] + runs[index + 1][1])
        found.append([*runs[: index - 1], joined, runs[index], *runs[index + 2 :]])
    return found


def _smaller_plans(plan: Plan) -> list[Plan]:
    found = [replace(plan, faults={})] if plan.faults else []
    found += [
        replace(plan, faults={k: v for k, v in plan.faults.items() if k != each})
        for each in plan.faults
    ]
    for index, spec in enumerate(plan.specs):
        for thread, ops in enumerate(spec.threads):
            for at in range(len(ops) - 1, -1, -1):
                shorter = (*ops[:at], *ops[at + 1 :])
                all_threads = (*spec.threads[:thread], shorter, *spec.threads[thread + 1 :])
                smaller = replace(spec, threads=all_threads)
                found.append(
                    replace(plan, specs=(*plan.specs[:index], smaller, *plan.specs[index + 1 :]))
                )
    return found


def table(result: Result, width: int = 100) -> str:
    """The trace: (step, actor, call, path), an empty line at each switch."""
    lines = [f"{'step':>5}  {'actor':<14} {'call':<12} path"]
    before = ""
    for step in result.trace:
        if step.task != before:
            lines.append("")
            before = step.task
        note = f"   <-- {step.note}" if step.note else ""
        path = step.path.removeprefix(f"{NAMESPACE}/{CLUSTER}/")
        lines.append(f"{step.step:>5}  {step.task:<14} {step.call:<12} {path}{note}")
    return "\n".join(lines)


Make = Callable[[Random], Plan]
