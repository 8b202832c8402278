"""The newest requests: one that is sent twice counts once."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

REQUESTS_MAX = 100_000
KEPT_S = 24 * 3600
"""A request that is repeated later than this, or after so many others, is appended again."""


class Known(NamedTuple):
    """The transaction that a request appended, and until when that is known (Unix time in
    milliseconds)."""

    id: int
    until_ms: int


class RequestWindow:
    """Of one partition. The oldest requests are forgotten first."""

    def __init__(self, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self._appended: OrderedDict[str, Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._appended)

    def get(self, request: str, now_ms: int) -> int:
        """The id of its transaction; 0: it is not known."""
        appended = self._appended.get(request)
        return 0 if appended is None or appended.until_ms <= now_ms else appended.id

    def note(self, request: str, known: Known) -> None:
        """In the order of the ids, or in any order before `settle`."""
        before = self._appended.get(request)
        if before is None or before.id < known.id:
            self._appended[request] = known
            self._appended.move_to_end(request)
        if len(self._appended) > 2 * self._requests_max:
            self.settle()

    def settle(self) -> None:
        """Sort by id, and forget those above the limit."""
        newest = sorted(self._appended.items(), key=lambda item: item[1].id)[-self._requests_max :]
        self._appended = OrderedDict(newest)
