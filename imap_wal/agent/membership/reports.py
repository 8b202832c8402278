"""What the connected members report as durable and as not durable, with their beats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imap_wal.agent.requests import Report

KINDS = ("durable", "transient", "unnamed", "structures")
"""Maps that the log keeps; maps that opted out by name; maps that no list names, and that the log
does not keep; structures that no log can keep. In the order of a report."""


class Reports:
    """Used by the serving thread; `counts` by any thread."""

    def __init__(self) -> None:
        self._by_sender: dict[bytes, Report] = {}

    def told(self, sender: bytes, report: Report) -> None:
        self._by_sender[sender] = report

    def gone(self, sender: bytes) -> None:
        self._by_sender.pop(sender, None)

    def of(self, sender: bytes) -> Mapping[str, Any] | None:
        """Of each kind, how many this member has used, and the first names; None: no report."""
        report = self._by_sender.get(sender)
        if report is None:
            return None
        return {
            kind: {"count": count, "names": names}
            for kind, (count, names) in zip(KINDS, report, strict=True)
        }

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind the members use, at least: names that a member has only counted may
        be the same as names of another member."""
        counts = dict.fromkeys(KINDS, 0)
        for index, kind in enumerate(KINDS):
            kinds = [report[index] for report in list(self._by_sender.values())]
            names = {name for _, listed in kinds for name in listed}
            counts[kind] = max([len(names), *(count for count, _ in kinds)])
        return counts
