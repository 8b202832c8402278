"""`decisions/` in the navigation of mkdocs.yml becomes one entry for each page of that folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """A folder in `nav`, written with a slash at its end, is replaced by its pages in order of
    name."""
    config.nav = [_expanded(each, Path(config.docs_dir)) for each in config.nav]
    return config


def _expanded(entry: Any, docs: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {
        title: _pages(target, docs) if isinstance(target, str) and target.endswith("/") else target
        for title, target in entry.items()
    }


def _pages(folder: str, docs: Path) -> list[str]:
    """An `index.md` comes first: it is the page of the section itself."""
    pages = sorted(
        (docs / folder).glob("*.md"), key=lambda page: (page.name != "index.md", page.name)
    )
    return [page.relative_to(docs).as_posix() for page in pages]
