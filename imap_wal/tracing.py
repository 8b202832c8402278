"""Spans: which work took how long. Only an agent can have a tracer; without it, no span is kept. As
for logging, the process has one tracer: each part names its work, and only the program decides
whether the spans are sent. See decision 48 in docs/decisions/agents.md.
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
        """Take the span of work that ends now. `seconds`: how long it took. `facts`: numbers about
        it. `parts`: its consecutive parts, with the seconds of each. `error`: the class of the
        error that ended it; "": none. Never pass a key, a value, the name of a map, or the text of
        an error. Returns the id of the trace; "": the span is not kept. Thread-safe; it never
        blocks."""


_tracer: Tracer | None = None


def current() -> Tracer | None:
    """The tracer of this process."""
    return _tracer


def use(tracer: Tracer | None) -> None:
    """Give all spans that end from now on to this tracer; None: keep no spans."""
    global _tracer
    _tracer = tracer


@contextmanager
def span(clock: Clock, name: str) -> Iterator[dict[str, int]]:
    """The `with` block is a span. The block adds facts about its work to the dict."""
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
