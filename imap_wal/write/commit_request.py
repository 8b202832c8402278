"""What a caller gives to the committer, and waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from imap_wal.errors import ImapWalError, TooLarge
from imap_wal.format import COUNT_MAX, ENTRIES, PAYLOAD_BYTES_MAX, Position


class CommitRequest:
    """One caller's changes. `payload`: a msgpack stream of `count` entries, in pieces. `apply` runs
    when they are acknowledged, in log order and before any caller returns. `session` and `request`
    (its last) are for the duplicate check; 0 for none. `content` has the
    same changes as objects, for the caller."""

    __slots__ = (
        "apply",
        "awaited",
        "content",
        "count",
        "done",
        "error",
        "kind",
        "payload",
        "position",
        "request",
        "session",
        "size",
        "sleeper",
    )

    def __init__(
        self,
        payload: list[bytes],
        count: int,
        apply: Callable[[], None] | None = None,
        kind: int = ENTRIES,
        session: int = 0,
        request: int = 0,
        content: object = None,
    ) -> None:
        """Raises `TooLarge` if no frame can hold it."""
        self.payload, self.count, self.apply, self.kind, self.session, self.request = (
            payload,
            count,
            apply,
            kind,
            session,
            request,
        )
        self.content = content
        self.size = sum(map(len, payload))
        if self.size > PAYLOAD_BYTES_MAX or count > COUNT_MAX:
            raise TooLarge(
                f"one commit has {count} changes in {self.size} bytes; it may have at most "
                f"{COUNT_MAX} changes, and must be below 2 GiB: split it"
            )
        self.done = False
        self.awaited = False
        """A thread sleeps on it, or is about to check whether it must."""
        self.error: ImapWalError | None = None
        self.position: Position | None = None
        self.sleeper: threading.Lock | None = None

    def wake(self) -> None:
        """Wake the thread that waits for this batch, if there is one. Safe to call twice."""
        sleeper = self.sleeper
        if sleeper is not None and sleeper.locked():
            try:
                sleeper.release()
            except RuntimeError:
                pass  # another thread woke it between the two lines

    def result(self) -> Position:
        """The position of the first entry, or the error."""
        if self.error is not None:
            raise self.error
        assert self.position is not None
        return self.position
