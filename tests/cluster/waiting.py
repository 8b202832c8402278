"""Waiting for a condition, until a deadline or until it can no longer become true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Ended(Exception):
    """A process that should run has ended, so waiting is useless."""


def until(what: str, condition: Callable[[], T], seconds: float = 60, pause: float = 0.02) -> T:
    """The first truthy answer of the condition; an error that it raised last is part of the
    failure."""
    deadline = time.monotonic() + seconds
    last: BaseException | None = None
    while True:
        try:
            answer = condition()
        except Ended:
            raise
        except Exception as error:
            last = error
        else:
            if answer:
                return answer
            last = None
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}") from last
        time.sleep(pause)
