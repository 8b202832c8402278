"""A forked child must not use the stores and logs that its parent has open, and no other process
can get them as a copy.

After `os.fork`, the child has the parent's objects, but not its threads. So a lock that one of
those threads held is never released, and no commit ever ends. The log belongs to the parent.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn
from weakref import WeakSet

from imap_wal.errors import Closed, Fenced


class Openness:
    """Whether a store or log can be used: not after it was closed, and not in a forked child."""

    def __init__(self, noun: str) -> None:
        """`noun`: its name in errors, such as "store"."""
        self.closed = False
        """Also in a forked child."""
        self.at_end: Callable[[], object] = lambda: None
        """Called when it was closed, and in a forked child. Takes no lock."""
        self._what, self._parent = noun, 0
        _open.add(self)

    def end(self) -> None:
        """It cannot be used any more."""
        self.closed = True
        self.at_end()

    def check(self) -> None:
        """Raises `Closed` after `end`, and `Fenced` in a forked child."""
        if self.closed:
            self.check_process()
            raise Closed(f"this {self._what} was closed; open it again")

    def check_process(self) -> None:
        """Raises `Fenced` in a forked child. Takes no lock."""
        if self._parent:
            raise Fenced(
                f"this {self._what} was opened by process {self._parent}, and this is a forked "
                f"child of it: open a {self._what} in each process separately, after the fork"
            )


class OfOneProcess:
    """An object that `pickle` and `copy` refuse, with a reason."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} belongs to the process that opened it, and cannot be pickled or copied; "
            "pass the URL, and call imap_wal.open or imap_wal.connect in the other process; "
            "dict(…) copies the content of a map"
        )


_open: WeakSet[Openness] = WeakSet()


def _in_child() -> None:
    for handle in list(_open):
        handle._parent = handle._parent or os.getppid()
        handle.end()


os.register_at_fork(after_in_child=_in_child)
