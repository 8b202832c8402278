"""The page of the decisions lists them: the navigation names only that page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify

INDEX = "decisions/index.md"
HEADING = re.compile(r"^(##?) (\d+)\. (.*)$", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Add the title of each decision, newest first, to the page of all of them."""
    if page.file.src_uri != INDEX:
        return markdown
    entries: dict[int, str] = {}
    for file in (Path(config.docs_dir) / INDEX).parent.glob("*.md"):
        text = file.read_text(encoding="utf-8")
        for heading, number, title in HEADING.findall(text):
            anchor = f"#{slugify(f'{number}. {title}', '-')}" if heading == "##" else ""
            entries[int(number)] = f"- {number}: [{title}]({file.name}{anchor})"
    newest_first = (entries[number] for number in sorted(entries, reverse=True))
    return "\n".join([markdown, "## All decisions", "", *newest_first, ""])
