"""An answer whose memory is counted until it has left the agent."""

from __future__ import annotations

from collections.abc import Callable


class Payload(bytearray):
    """The payload of an answer. It calls `released` when its memory is released, on any thread."""

    def __init__(self, released: Callable[[], None]) -> None:
        super().__init__()
        self._released = released

    def __del__(self) -> None:
        self._released()
