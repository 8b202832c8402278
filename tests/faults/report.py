"""Fills the numbers of `docs/reliability.md` from what the last runs that passed have counted:
`python -m tests.faults.report`, after `make test-all` and `make torture`.

A row of the page names a file of tests of this folder in backticks, and ends with two columns: the
cases of all its tests in the short form, and in the long one."""

from __future__ import annotations

import json
import re
from pathlib import Path

COUNTS = "out/faults.json"
PAGE = "docs/reliability.md"

_ROW = re.compile(r"^(\|(?:.*\|)? .*`(?P<file>test_\w+)` \|) [^|]* \| [^|]* \|$", re.MULTILINE)


def filled(page: str, counts: dict[str, dict[str, int]]) -> str:
    def row(match: re.Match[str]) -> str:
        tests = [count for test, count in counts.items() if test.startswith(f"{match['file']}::")]
        short, long = (sum(count.get(form, 0) for count in tests) for form in ("short", "long"))
        return f"{match[1]} {_number(short)} | {_number(long)} |"

    return _ROW.sub(row, page)


def named(page: str) -> set[str]:
    """The files of tests that have a row."""
    return {match["file"] for match in _ROW.finditer(page)}


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


if __name__ == "__main__":
    path = Path(PAGE)
    path.write_text(filled(path.read_text(), json.loads(Path(COUNTS).read_text())))
