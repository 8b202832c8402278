"""Files that a page of the documentation shows: blocks with a title."""

from __future__ import annotations

import re
from pathlib import Path

TITLED = re.compile(r"^```\w+ title=\"([\w.]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def titled(page: Path) -> dict[str, str]:
    """The text of each file, by its name."""
    return dict(TITLED.findall(page.read_text(encoding="utf-8")))
