"""On the page of promises and the page that compares, each test becomes its name in words, with the
first paragraph of its docstring."""

from __future__ import annotations

import ast
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ("promises.md", "comparison.md")
TEST = re.compile(r"`(tests/[\w/]+\.py)::test_(\w+)`")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return TEST.sub(_said, markdown) if page.file.src_uri in PAGES else markdown


def _said(test: re.Match[str]) -> str:
    file, name = test.groups()
    said = name.replace("_", " ").capitalize()
    more = _docstrings(ROOT / file).get(f"test_{name}", "").partition("\n\n")[0]
    text = escape(f"{said}. {' '.join(more.split())}".rstrip(), quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text).replace("|", r"\|")
    return f"<p>{text} <small>{file.removeprefix('tests/')}</small></p>"


@cache
def _docstrings(file: Path) -> dict[str, str]:
    return {
        each.name: ast.get_docstring(each) or ""
        for each in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(each, ast.FunctionDef)
    }
