"""What a check of `doctor` found."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `advice` is empty if there is no problem."""

    name: str
    status: str
    what: str
    advice: str = ""
