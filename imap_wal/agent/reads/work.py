"""The work of the thread of reads, in parts: members see that it continues, and the
serving thread has priority."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from imap_wal.read.merge import MergeProgress

YIELD_S = 1.0
"""How long a part of a merge lets the serving thread go first. A hello, which may claim the log,
does hundreds of file operations, and both threads need the interpreter after each of them."""


class Work:
    """Counts the parts of the work that the thread of reads has done. While the number grows, a
    member waits for its read, however long that takes. Between two parts, this thread lets the
    serving thread go first."""

    def __init__(self) -> None:
        self.parts = 0
        self.merge: MergeProgress | None = None
        """The last part of the last merge; None before the first merge."""
        self._free = threading.Event()
        self._free.set()

    def done(self, merge: MergeProgress | None = None) -> None:
        """Called by the thread of reads after each part."""
        self.parts += 1
        if merge is not None:
            self.merge = merge
        self._free.wait(YIELD_S)

    @contextmanager
    def after(self) -> Iterator[None]:
        """The thread of reads begins its next part after this block."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()
