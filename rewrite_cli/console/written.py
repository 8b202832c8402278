"""The standard output, and files that a command writes: the error of a write names which of them it
is."""

from __future__ import annotations

import errno
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

STDOUT = "the standard output"


@contextmanager
def writing(target: object = STDOUT) -> Iterator[None]:
    """Names the target in the error of a write, which the system's own text does not. An ended
    reader of a pipe is no error: click ends the command then."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise _failure(target, error) from error


def closed_within(seconds: float) -> bool:
    """Wait; return early with True if nothing reads the output any more."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # not a file
        threading.Event().wait(seconds)
        return False
    return bool(watched.poll(seconds * 1000))


def _failure(target: object, error: OSError) -> Exception:
    if error.errno == errno.EBADF:
        return click.ClickException(f"{target} is closed: write to another place")
    advice = "free space there, or write to another place"
    return click.ClickException(f"{target} cannot be written: {error.strerror or error}; {advice}")


class NamedOutput:
    """A file whose write errors name the target. `file`: of text or bytes."""

    closed = False

    def __init__(self, file: Any, target: object) -> None:
        self._file, self._target = file, target

    def write(self, data: Any) -> int:
        try:
            return int(self._file.write(data))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            raise _failure(self._target, error) from error

    def flush(self) -> None:
        with writing(self._target):
            self._file.flush()
