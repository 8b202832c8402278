"""The world of one run: tasks that take turns, one storage call at a time.

    Task      a greenlet that runs real code; it stops before every call to the storage
    Process   tasks that live and die together: one clock, one randomness, one view of the storage
    World     which task runs next, at which step, with which fault; the trace of what was done

A step is one call to the storage. At every step the chooser picks one of the tasks that could
make one. Nothing else switches tasks, so a run is determined by its choices and its faults alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from imap_wal.clock import SeededRandomness
from storage_backends import Unavailable

BASE_MS = 1_763_720_000_000
STEP_MS = 20
"""How far the clocks move at each step."""
STEPS_MAX = 6000
LATE_STEPS = 60
"""How long a late answer may take."""


CHANGES = frozenset(
    ("append", "create", "create_from", "delete", "open_append", "rename", "replace", "truncate")
)
"""Calls that change what others see."""


class Killed(BaseException):
    """The process died here. No handler of the code under test may catch it."""


UNEXPECTED = "unexpected error"
"""The rule that is broken by an error that no code raises on purpose."""


class Violation(Exception):
    """A promise was broken. `rule` is a short name for it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at one call of a process. `kind`: crash (before the call), crash-after, fails
    (no effect, an error), lost (takes effect, its answer is an error), late (takes effect, the
    answer comes many steps later), power (all processes die, unsynced bytes are lost)."""

    kind: str


class Step(NamedTuple):
    """One line of the trace."""

    step: int
    task: str
    call: str
    path: str
    note: str = ""


class SimClock:
    """A process's clocks: both move with the steps; the first is `offset_ms` off."""

    def __init__(self, world: World, offset_ms: int = 0) -> None:
        self._world, self.offset_ms = world, offset_ms

    def now_ms(self) -> int:
        world = self._world
        return BASE_MS + world.step * STEP_MS + world.extra_ms + self.offset_ms

    def monotonic(self) -> float:
        world = self._world
        return (world.step * STEP_MS + world.extra_ms) / 1000


class Process:
    """See the module. `faults`: number of its call → what happens there."""

    def __init__(
        self, world: World, name: str, machine: str = "", offset_ms: int = 0, seed: int = 0
    ) -> None:
        self.world, self.name, self.machine = world, name, machine
        self.clock = SimClock(world, offset_ms)
        self.randomness = SeededRandomness(seed)
        self.faults: dict[int, Fault] = {}
        self.calls = 0
        self.dead = False
        self.hurt = False
        """A fault was injected: its calls may fail."""
        self.tasks: list[Task] = []
        self.memory: dict[str, Any] = {}
        """What its tasks share: the open store, views, sessions."""


class Task(greenlet):
    """One thread of a process."""

    def __init__(self, world: World, process: Process, name: str, work: Callable[[], None]) -> None:
        super().__init__(self._work, world.hub)
        self.world, self.process, self.name, self.work = world, process, name, work
        self.number = len(world.tasks)
        self.calls = 0
        self.changes = 0
        """How many of its calls changed something."""
        self.following = ""
        """The call that it is about to make."""
        self.waiting: object = None
        """What it is blocked on."""
        self.resumes_at = 0
        self.expects: object = None
        """What wakes it before that."""
        self.daemon = False
        """It may wait without limit: it serves other tasks."""

    def is_alive(self) -> bool:
        """As of a thread: a program does not end while the simulation runs it."""
        return not self.process.dead

    def _work(self) -> None:
        try:
            if not self.process.dead:
                self.work()
        except Killed:
            pass
        except Violation as error:
            self.world.violate(error)
        except Exception as error:  # an unexpected error ends the run
            self.world.violate(Violation(UNEXPECTED, f"{self.name}: {error!r}"), error)
        self.world.finished(self)


class Chooser(Protocol):
    """Which task runs next."""

    def choose(self, world: World, ready: list[Task], current: Task | None) -> Task: ...


class World:
    """See the module."""

    def __init__(self, chooser: Chooser, steps_max: int = STEPS_MAX) -> None:
        self.hub = getcurrent()
        self.chooser = chooser
        self.tasks: list[Task] = []
        self.ready: list[Task] = []
        self.late: list[Task] = []
        self.processes: list[Process] = []
        self.step = 0
        self._ticks = 0
        self.extra_ms = 0
        self._trace: list[tuple[int, str, str, str]] = []
        self.notes: dict[int, str] = {}
        """Step → the fault that was injected there."""
        self.choices: list[int] = []
        self.violation: Violation | None = None
        self.cause: BaseException | None = None
        self.on_death: list[Callable[[Process], None]] = []
        self.on_power: list[Callable[[], None]] = []
        self.keys = ""
        """The source of the keys of encrypted logs; "": they are not encrypted."""
        """The keys of the log's encryption, for every process that opens the storage."""
        self._steps_max = steps_max
        self._running = False
        self.blocked = False
        """Whether a task may wait for something."""

    @property
    def elapsed_ms(self) -> int:
        return self.step * STEP_MS + self.extra_ms

    @property
    def trace(self) -> list[Step]:
        return [Step(*each, self.notes.get(each[0], "")) for each in self._trace]

    def tick(self) -> float:
        """A new moment within this step, later than all before."""
        self._ticks += 1
        return self.step + self._ticks / 1_000_000

    # ---- before and after a run ----

    def process(self, name: str, machine: str = "", offset_ms: int = 0, seed: int = 0) -> Process:
        process = Process(self, name, machine, offset_ms, seed)
        self.processes.append(process)
        return process

    def close(self) -> None:
        """Release what was run. Otherwise all of it is one cycle of references."""
        for process in self.processes:
            process.tasks.clear()
            process.memory.clear()
        self.processes.clear()
        self.tasks.clear()
        self.on_death.clear()
        self.on_power.clear()

    def spawn(self, process: Process, name: str, work: Callable[[], None]) -> Task:
        task = Task(self, process, name, work)
        self.tasks.append(task)
        self.ready.append(task)
        process.tasks.append(task)
        return task

    def run(self) -> None:
        """Run until all tasks have ended, or until the first violation."""
        self._running = True
        try:
            while self.violation is None and any(
                not (task.daemon or task.dead) for task in self.tasks
            ):
                task = self._next(None)
                if task is None:
                    break
                task.switch()
            if self.violation is None and (
                stuck := [task for task in self.tasks if task.waiting and not task.daemon]
            ):
                waits = ", ".join(
                    f"{task.name} for {type(task.waiting).__name__}" for task in stuck
                )
                self.violate(Violation("an actor never ends", f"waits: {waits}"))
        finally:
            self._running = False
            for process in self.processes:
                if any(not task.dead for task in process.tasks):
                    self.kill(process)

    # ---- called by tasks ----

    def enter(self, process: Process, call: str, path: str) -> Fault | None:
        """A call to the storage is about to be made: other tasks may run first. Returns what
        happens to it. `Killed`."""
        if process.dead:
            raise Killed
        task = getcurrent()
        if not isinstance(task, Task):
            return None  # before or after the run: one actor alone
        task.following = call
        if self.late or len(self.ready) != 1:
            self._give_way(task)
        self.step = step = self.step + 1
        if step > self._steps_max:
            self.violate(Violation("an actor never ends", f"more than {self._steps_max} steps"))
            self.hub.switch()
        process.calls += 1
        task.calls += 1
        if call in CHANGES:
            task.changes += 1
        self._trace.append((step, task.name, call, path))
        if process.faults and process.calls in process.faults:
            return self._fault(process, process.faults[process.calls], path)
        return None

    def _fault(self, process: Process, fault: Fault, path: str) -> Fault:
        """What happens to this call, before it takes effect."""
        self.notes[self.step] = fault.kind
        process.hurt = True
        if fault.kind == "crash":
            self.kill(process)
            raise Killed
        if fault.kind == "power":
            self.power_loss()
            raise Killed
        if fault.kind == "fails":
            raise Unavailable("the storage did not answer (injected)", path)
        return fault

    def leave(self, process: Process, fault: Fault, path: str) -> None:
        """The call took effect; what happens to its answer."""
        if fault.kind == "crash-after":
            self.kill(process)
            raise Killed
        if fault.kind == "lost":
            raise Unavailable("the answer was lost (injected)", path)
        if fault.kind == "late":
            self.sleep(LATE_STEPS)

    def sleep(self, steps: int, until: object = None) -> None:
        """Let others run for this many steps, or until no other can, or until `wake(until)`."""
        task = getcurrent()
        if not isinstance(task, Task):
            return
        if task.process.dead:
            raise Killed
        task.resumes_at, task.expects = self.step + steps, until
        self.ready.remove(task)
        self.late.append(task)
        self._switch_away(task)

    def block(self, what: object) -> None:
        """Wait until `wake(what)`."""
        task = getcurrent()
        if not isinstance(task, Task):
            raise Violation("deadlock", f"the only actor waits for {what!r}")
        if task.process.dead:
            raise Killed
        task.waiting = what
        self.blocked = True
        self.ready.remove(task)
        self._switch_away(task)

    def wake(self, what: object) -> None:
        """The tasks that are blocked on it may run."""
        if self.blocked:
            for task in self.tasks:
                if task.waiting is what:
                    task.waiting = None
                    self._make_ready(task)
            self.blocked = any(task.waiting is not None for task in self.tasks)
        if self.late:
            for task in [task for task in self.late if task.expects is what]:
                self.late.remove(task)
                self._make_ready(task)

    # ---- deaths ----

    def kill(self, process: Process) -> None:
        """End all its tasks where they are; the caller raises `Killed` if it is one of them."""
        process.dead = True
        current = getcurrent()
        for task in process.tasks:
            if task is current or task.dead:
                continue
            task.waiting = None
            self._forget(task)
            task.parent = current
            task.throw(Killed if task else GreenletExit)  # the latter: it has not begun
        for callback in self.on_death:
            callback(process)

    def power_loss(self) -> None:
        """All processes die, and what was not synced is lost."""
        for process in self.processes:
            process.hurt = True
            if not process.dead:
                self.kill(process)
        for callback in self.on_power:
            callback()

    # ---- inside ----

    def violate(self, violation: Violation, cause: BaseException | None = None) -> None:
        if self.violation is None:
            self.violation, self.cause = violation, cause

    def finished(self, task: Task) -> None:
        self._forget(task)

    def _forget(self, task: Task) -> None:
        if task in self.ready:
            self.ready.remove(task)
        if task in self.late:
            self.late.remove(task)

    def _make_ready(self, task: Task) -> None:
        self.ready.append(task)
        self.ready.sort(key=lambda each: each.number)

    def _next(self, current: Task | None) -> Task | None:
        if self.late:
            for task in [task for task in self.late if task.resumes_at <= self.step]:
                self.late.remove(task)
                self._make_ready(task)
        if not self.ready:
            if not self.late:
                return None
            task = min(self.late, key=lambda task: (task.resumes_at, task.number))
            self.late.remove(task)
            self._make_ready(task)
        if len(self.ready) == 1:
            return self.ready[0]
        chosen = self.chooser.choose(self, self.ready, current)
        self.choices.append(chosen.number)
        return chosen

    def _give_way(self, task: Task) -> None:
        following = self._next(task)
        if following is not task:
            assert following is not None
            following.parent = self.hub
            following.switch()
            if task.process.dead:
                raise Killed

    def _switch_away(self, task: Task) -> None:
        self.hub.switch()
        if task.process.dead:
            raise Killed
