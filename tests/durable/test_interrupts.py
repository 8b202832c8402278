"""Ctrl-C in the middle of a put: later calls work, or raise an error that says why not; no call
hangs, no acknowledged change is lost, and no name is used up."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import ImapWalError
from storage_backends import open_store
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.kit.effort import every, step, thorough
from tests.support import Threads, contents, embedded

OURS = tuple(
    str(Path(package.__file__ or "").parent)
    for package in (imap_wal, sys.modules["storage_backends"])
)


class Interrupted:
    """Runs work, and raises KeyboardInterrupt before line number `at` of this project's code in it.
    `lines`: how many there were.

    Lines that begin with `with` are left out: Python shows them again at the block's end, before
    the lock is released, where no signal is handled."""

    def __init__(self, at: int) -> None:
        self.at, self.lines, self.where = at, 0, ""

    def run(self, work: Callable[[], Any]) -> bool:
        """Whether it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(OURS) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and not linecache.getline(
            frame.f_code.co_filename, frame.f_lineno
        ).lstrip().startswith("with "):
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line


def check_after(
    store: imap_wal.Store, acked: dict[str, Any], doubtful: dict[str, Any], where: str
) -> bool:
    """Whether the store can be used further. Another thread can put, or is refused soon; so can
    this one."""
    m = store.map("m")
    refused: list[ImapWalError] = []

    def put(key: str) -> None:
        try:
            m[key] = 1
            acked[key] = 1
        except ImapWalError as error:
            refused.append(error)

    def puts() -> None:
        put("after")
        put("again")

    Threads(puts).join(20)
    Threads(puts, lambda: put("third")).join(20)
    for error in refused:
        assert "interrupted" in str(error) and "opened again" in str(error), (where, error)
    shown = dict(m)
    for key, value in acked.items():
        assert shown.get(key) == value or (key in doubtful and shown.get(key) == doubtful[key]), (
            where,
            key,
        )
    return not refused


def play(
    store: imap_wal.Store,
    at: int,
    before: dict[str, Any],
    work: Callable[[Any], Any],
    **doubtful: Any,
) -> tuple[int, bool]:
    """One store, interrupted at one line of `work`. Returns the number of lines, and whether the
    store can still be used."""
    m = store.map("m")
    acked = dict(before)
    for key, value in before.items():
        m[key] = value
    interrupted = Interrupted(at)
    if not interrupted.run(lambda: work(store)):
        acked.update(doubtful)
    is_usable = check_after(store, acked, doubtful, interrupted.where)
    shown = dict(m)
    try:
        store.close()
    except ImapWalError:
        assert not is_usable
    left = contents(store._log.store)
    if is_usable:
        assert left == shown, (interrupted.where, "memory differs from the log")
    for key, value in acked.items():
        assert left.get(key) == value or (key in doubtful and left.get(key) == doubtful[key]), (
            interrupted.where,
            key,
        )
    return interrupted.lines, is_usable


WORKS: dict[str, Callable[[Any], Any]] = {
    "the very first put": lambda store: store.map("m").__setitem__("k", "new"),
    "a later put": lambda store: store.map("m").__setitem__("k", "new"),
    "a put that seals its segment": lambda store: store.map("m").__setitem__("k", "x" * 500),
    "a pop": lambda store: store.map("m").setdefault("k", "new"),
}


@every(7)
@pytest.mark.parametrize("name", WORKS)
def test_interrupted_change_leaves_a_working_or_failed_store(
    memory: MemoryStore, name: str
) -> None:
    """An interrupt at any line of a change leaves a store that works, or that says why not."""
    work = WORKS[name]
    before = {} if name == "the very first put" else {"old": 1}
    doubtful = {"k": "x" * 500 if "seals" in name else "new"}
    at, lines, failed = 0, 1, 0
    while at <= lines:
        at += min(step(), 11)
        store = embedded(MemoryStore(f"{memory.url}-{name}-{at}"), segment_bytes=400)
        lines, is_usable = play(store, at, before, work, **doubtful)
        failed += not is_usable
    assert at > 60, "so many lines has a put"
    assert not failed, "a store on an appendable storage can be used after every interrupt"


@every(2)
@pytest.mark.parametrize("when", ["before", "after"])
def test_interrupted_first_put_uses_up_no_name(tmp_path: Path, when: str) -> None:
    """An interrupt in any call of the first put to a local disk uses up no name. The segment's file
    may be there, with no header or with one; the next put makes another, and every reader accepts
    the log."""
    at, struck = 0, True
    while struck:
        at += 1
        root = tmp_path / str(at)
        faulty = InterruptedStore(LocalStore(str(root)), when)
        store = embedded(faulty)
        m = store.map("m")
        for _ in range(2):  # Ctrl-C, and again
            faulty.left = at
            try:
                m["k"] = 1
            except KeyboardInterrupt:
                pass
        struck, faulty.left = faulty.left <= 0, 0
        check_after(store, {}, {}, f"call {at}")
        assert store.archive() >= 4
        m["more"] = 1
        store.close()
        with imap_wal.open(root, node="n1", recovery_mode="absolute") as again:
            assert dict(again.map("m"))["more"] == 1
            assert {"after", "again", "third"} <= set(again.map("m"))
    assert at >= 3


class InterruptedStore:
    """Raises KeyboardInterrupt in call number `left` from now, before or after it is done. 0:
    never."""

    def __init__(self, inner: LocalStore, when: str) -> None:
        self._inner, self._when = inner, when
        self.left = 0

    def __getattr__(self, name: str) -> Any:
        return self._around(getattr(self._inner, name))

    def _around(self, value: Any) -> Any:
        if not callable(value):
            return value

        def call(*args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0 and self._when == "before":
                raise KeyboardInterrupt
            answer = value(*args, **more)
            if self.left == 0:
                raise KeyboardInterrupt
            return (
                _Appender(answer, self._around)
                if hasattr(answer, "append") and hasattr(answer, "truncate")
                else answer
            )

        return call


class _Appender:
    def __init__(self, inner: Any, around: Callable[[Any], Any]) -> None:
        self._inner, self._wrap = inner, around

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self._inner, name))


@thorough
def test_interrupted_object_write_commits_or_fails_clearly(
    tmp_path: Path,
) -> None:
    """An interrupt while objects are written ends in a commit, or in a clear error."""
    at, lines = -4, 1
    while at <= lines:
        at += 5
        inner = open_store(f"objects+file://{tmp_path}/{at}")
        lines, _ = play(embedded(inner), at, {"old": 1}, WORKS["a later put"], k="new")


def test_close_after_an_interrupted_close_frees_the_lock(memory: MemoryStore) -> None:
    at, lines = 0, 1
    while at <= lines:
        at += min(step(), 11)
        store = embedded(where := MemoryStore(f"{memory.url}-close-{at}"))
        store.map("m")["a"] = 1
        interrupted = Interrupted(at)
        interrupted.run(store.close)
        lines = interrupted.lines
        store.close()
        with embedded(where) as again:
            assert again.map("m")["a"] == 1
