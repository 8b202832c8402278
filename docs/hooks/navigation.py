"""The page of the decisions lists them: the navigation names only that page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INDEX = "decisions/index.md"


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Add the title of each decision, newest first, to the page of all of them."""
    if page.file.src_uri != INDEX:
        return markdown
    pages = sorted((Path(config.docs_dir) / INDEX).parent.glob("0*.md"), reverse=True)
    return "\n".join([markdown, "## All decisions", "", *map(_entry, pages), ""])


def _entry(page: Path) -> str:
    title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    number, _, what = title.partition(". ")
    return f"- {number}: [{what}]({page.name})"
