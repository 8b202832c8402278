"""What the code under test gets in place of `threading` and `time`: while a task would block,
others run, and only the world's time passes."""

from __future__ import annotations

import threading as real
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from greenlet import getcurrent

from tests.simulation.world import Task, World

_world: World | None = None


def enter(world: World | None) -> None:
    """From here on locks belong to this world."""
    global _world
    _world = world


def _block(what: object) -> None:
    if _world is None:
        raise RuntimeError("a lock is taken twice outside of a simulation")
    _world.block(what)


def _wake(what: object) -> None:
    if _world is not None and (_world.blocked or _world.late):
        _world.wake(what)


class Lock:
    """As `threading.Lock`: any thread may release it."""

    __slots__ = ("_locked",)

    def __init__(self) -> None:
        self._locked = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._locked:
            if not blocking:
                return False
            _block(self)
        self._locked = True
        return True

    def release(self) -> None:
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False
        if _world is not None and (_world.blocked or _world.late):
            _world.wake(self)

    def locked(self) -> bool:
        return self._locked

    def __enter__(self) -> bool:
        if self._locked:
            return self.acquire()
        self._locked = True
        return True

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    __slots__ = ("_depth", "_owner")

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = getcurrent()
        while self._depth and self._owner is not me:
            if not blocking:
                return False
            _block(self)
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            _wake(self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """As `threading.Condition`. During a wait with a timeout others run; it returns False unless it
    was notified."""

    def __init__(self, lock: Any = None) -> None:
        self._lock = lock or RLock()
        self._waits = 0
        self._notified = 0

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def acquire(self, *arguments: Any) -> bool:
        return bool(self._lock.acquire(*arguments))

    def release(self) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        before = self._notified
        self._lock.release()
        try:
            if timeout is None:
                _block(self)
            else:
                _pause()
        finally:
            self._lock.acquire()
        return self._notified != before

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout) and timeout is not None:
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        self.notify_all()

    def notify_all(self) -> None:
        self._notified += 1
        _wake(self)


class Event:
    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        _wake(self)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            if not self._set:
                _pause()
            return self._set
        while not self._set:
            _block(self)
        return True


class Thread:
    """A thread of the process whose task starts it. Those of maintenance are not run: their work is
    a separate actor, which runs when the scheduler chooses it, not by a clock."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str = "",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self.name, self._args, self._kwargs = target, name, args, kwargs or {}
        self.daemon = daemon
        self._task: Task | None = None
        self._ended = False
        self.ident: int | None = None

    def start(self) -> None:
        parent = getcurrent()
        if self.name.startswith(("imap-wal-maintenance", "imap-wal-archiver")):
            return
        if not isinstance(parent, Task) or self._target is None:
            return
        target = self._target

        def work() -> None:
            try:
                target(*self._args, **self._kwargs)
            finally:
                self._ended = True
                _wake(self)

        process = parent.process
        self._task = parent.world.spawn(process, f"{process.name}/{self.name}", work)
        self._task.daemon = True
        self.ident = self._task.number + 1

    def join(self, timeout: float | None = None) -> None:
        if not isinstance(getcurrent(), Task):
            return
        while self.is_alive():
            if timeout is not None:
                _pause()
                return
            _block(self)

    def is_alive(self) -> bool:
        return self._task is not None and not self._ended


def _main_thread() -> object:
    """The first thread of the process that runs, to which a signal would be delivered."""
    task = getcurrent()
    if not isinstance(task, Task):
        return real.main_thread()
    return next(first for first in task.world.tasks if first.process is task.process)


def _pause() -> None:
    if _world is not None:
        _world.sleep(3)


class Threading:
    """The module."""

    Lock, RLock, Condition, Event, Thread = Lock, RLock, Condition, Event, Thread
    local = real.local
    current_thread = staticmethod(getcurrent)
    main_thread = staticmethod(_main_thread)
    get_ident = staticmethod(real.get_ident)


class Time:
    """The module `time`, as far as it is used."""

    @staticmethod
    def sleep(seconds: float) -> None:
        _pause()

    @staticmethod
    def monotonic() -> float:
        return 0.0 if _world is None else _world.elapsed_ms / 1000

    perf_counter = monotonic

    @staticmethod
    def time_ns() -> int:
        from tests.simulation.world import BASE_MS

        return (BASE_MS + (0 if _world is None else _world.elapsed_ms)) * 1_000_000
