"""Fills the numbers of `docs/reliability.md` from what the last runs that passed have counted:
`python -m tests.faults.report`, after `make test-all` and `make torture`.

A row of the page with a test of this folder in backticks ends with two columns: cases in the short
form, cases in the long one."""

from __future__ import annotations

import json
import re
from pathlib import Path

COUNTS = "out/faults.json"
PAGE = "docs/reliability.md"

_ROW = re.compile(
    r"^(\|(?:.*\|)? `(?P<file>test_\w+)::(?P<test>test_\w+)` \|) [^|]* \| [^|]* \|$", re.MULTILINE
)


def filled(page: str, counts: dict[str, dict[str, int]]) -> str:
    def row(match: re.Match[str]) -> str:
        found = counts.get(f"{match['file']}::{match['test']}", {})
        return f"{match[1]} {_number(found.get('short'))} | {_number(found.get('long'))} |"

    return _ROW.sub(row, page)


def named(page: str) -> set[str]:
    """The tests that have a row."""
    return {f"{match['file']}::{match['test']}" for match in _ROW.finditer(page)}


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


if __name__ == "__main__":
    path = Path(PAGE)
    path.write_text(filled(path.read_text(), json.loads(Path(COUNTS).read_text())))
