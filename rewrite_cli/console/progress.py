"""The progress of long work: on a terminal a bar with bytes, rate and time left; with `--progress
json` events on stderr, one line each."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from imap_wal.clock import SystemClock
from rewrite_cli.console.encoding import is_unicode, suited
from rewrite_cli.console.output import echo, errors, note, shown

AUTO, JSON, NONE = "auto", "json", "none"
EVERY_S = 1.0
"""The least time between two events."""
WIDE, NARROW = 80, 50
"""Columns of a terminal with bar and rate, and of one with bytes and time left."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A text, and how many bytes of the work are done. `step`: which of several steps this is; each
    has its own bytes. `tasks`: how many of `tasks_total` are done; 0 of 0 without tasks."""

    what: str
    bytes: int
    bytes_total: int
    step: str = ""
    tasks: int = 0
    tasks_total: int = 0


Tell: TypeAlias = Callable[[str | Reached], None]
"""A function that takes a text, or how much of the work is done."""


def mode() -> str:
    """`--progress` of the running command."""
    context = click.get_current_context(silent=True)
    options: dict[str, Any] = (context.find_root().obj if context is not None else None) or {}
    return str(options.get("progress", AUTO))


@contextmanager
def working(description: str) -> Iterator[Tell]:
    """Show the progress on stderr; silent outside a terminal, unless events are wanted. What the
    library logs (`imap_wal.progress`) becomes its text; warnings of the library are notes."""
    with progress() as bar:
        task = bar.add_task(description, total=None)
        events = _Events()
        step = ""

        def tell(done: str | Reached) -> None:
            nonlocal step
            if isinstance(done, Reached):
                if done.step != step:  # rate and time left are those of a step
                    step = done.step
                    bar.reset(task)
                bar.update(
                    task,
                    description=done.what,
                    completed=done.bytes,
                    total=done.bytes_total or None,
                )
                events.reached(done)
            else:
                bar.update(task, description=done)

        yield tell
        events.over()


@contextmanager
def progress() -> Iterator[Progress]:
    """The bar alone."""
    console = errors()
    columns = _columns(console.width)
    log = logging.getLogger("imap_wal")
    level = log.level
    disabled = not console.is_terminal or mode() != AUTO
    with Progress(*columns, console=console, transient=True, disable=disabled) as bar:
        handler = _Describing(bar)
        log.addHandler(handler)
        log.setLevel(min(logging.INFO, log.getEffectiveLevel()))
        try:
            yield bar
        finally:
            log.setLevel(level)
            log.removeHandler(handler)


def _columns(width: int) -> list[ProgressColumn]:
    """Those that fit on one line of a terminal; the text is cut if needed."""
    fixed = Column(no_wrap=True)
    wheel = SpinnerColumn("dots" if is_unicode(err=True) else "line", table_column=fixed)
    columns: list[ProgressColumn] = [wheel, _Description()]
    if width >= WIDE:
        columns.append(_IfKnown(BarColumn(12)))
    if width >= NARROW:
        columns.append(_IfKnown(DownloadColumn(binary_units=True)))
    if width >= WIDE:
        columns.append(_IfKnown(TransferSpeedColumn()))
    if width >= NARROW:
        columns.append(_IfKnown(TimeRemainingColumn()))
    return [*columns, TimeElapsedColumn(table_column=fixed)]


class _Description(ProgressColumn):
    """The text of the bar, which may have names in it: no markup, and safe for a terminal."""

    def render(self, task: Task) -> Text:
        return Text(suited(shown(task.description), err=True), overflow="ellipsis", no_wrap=True)


class _IfKnown(ProgressColumn):
    """A column that is empty until the total is known."""

    def __init__(self, inner: ProgressColumn) -> None:
        super().__init__(Column(no_wrap=True))
        self._inner = inner

    def render(self, task: Task) -> Any:
        return self._inner.render(task) if task.total else Text("")


class _Events:
    """Progress as JSON lines."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._wanted = mode() == JSON
        self._start = self._clock.monotonic() if self._wanted else 0.0
        self._printed_at, self._printed, self._step = 0.0, False, ""
        self._last: Reached | None = None

    def reached(self, done: Reached) -> None:
        if not self._wanted:
            return
        if done.step != self._step:
            self.over()
            self._step, self._start, self._printed = done.step, self._clock.monotonic(), False
        self._last = done
        if not self._printed or self._clock.monotonic() - self._printed_at >= EVERY_S:
            self._print(done)

    def over(self) -> None:
        """The last event, if it was not printed."""
        if self._last is not None:
            self._print(self._last)

    def _print(self, done: Reached) -> None:
        now = self._clock.monotonic()
        self._printed_at, self._printed, self._last = now, True, None
        rate = done.bytes / (now - self._start) if now > self._start else 0.0
        left = (done.bytes_total - done.bytes) / rate if rate else None
        event = {
            "event": "progress",
            "what": done.what,
            "bytes": done.bytes,
            "bytes_total": done.bytes_total,
            "bytes_per_second": round(rate),
            "seconds_left": None if left is None else round(left, 1),
        }
        if done.step:
            event |= {"step": done.step, "tasks": done.tasks, "tasks_total": done.tasks_total}
        echo(json.dumps(event), err=True)


class _Describing(logging.Handler):
    """Shows INFO records as the text of the bar, and warnings as notes."""

    def __init__(self, bar: Progress) -> None:
        super().__init__(logging.INFO)
        self._bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            note(record.getMessage())
        elif record.levelno == logging.INFO and self._bar.task_ids:
            self._bar.update(self._bar.task_ids[-1], description=record.getMessage())
