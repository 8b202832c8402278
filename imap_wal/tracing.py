"""Spans: which work took how long. Without a tracer, which only the agent can have, nothing is kept
of them. As for logging, there is one tracer for the process: each part names its work, and only the
program decides whether somebody hears of it. See docs/decisions/0063-few-spans.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from imap_wal.clock import Clock


class Tracer(Protocol):
    def ended(
        self,
        name: str,
        seconds: float,
        facts: Mapping[str, int],
        parts: Sequence[tuple[str, float]] = (),
        error: str = "",
    ) -> str:
        """Work that ends now and took so long. `parts`: its consecutive parts, with the seconds of
        each. `error`: the class of the error that ended it. Never a key, a value, the name of a
        map, or the text of an error. Returns the id of the trace; "": it is not kept. Thread-safe,
        and waits for nothing."""


_tracer: Tracer | None = None


def current() -> Tracer | None:
    """The tracer of this process."""
    return _tracer


def use(tracer: Tracer | None) -> None:
    """Give all spans that end from now on to this one."""
    global _tracer
    _tracer = tracer


@contextmanager
def span(clock: Clock, name: str) -> Iterator[dict[str, int]]:
    """Work that takes long. The dict gets the facts about it, before it ends."""
    facts: dict[str, int] = {}
    if _tracer is None:
        yield facts
        return
    began, error = clock.monotonic(), ""
    try:
        yield facts
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        if (tracer := _tracer) is not None:
            tracer.ended(name, clock.monotonic() - began, facts, error=error)
