"""ARCHITECTURE.md: every file, folder and class on it exists. Every decision that is named anywhere
has a page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
FILE = re.compile(r"[\w./-]+\.(?:py|java|md)")
FOLDER = re.compile(r"[\w./-]+/")
CLASS = re.compile(r"([A-Z][a-z]\w+)(?:\.(\w+))?")
NAMED = re.compile(r"[dD]ecisions? (\d+)(?: in docs/decisions/([\w-]+\.md))?")


def quoted() -> set[str]:
    """The names on the page, without its picture."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([^`\n]+)`", text))


def defined() -> tuple[set[str], set[str]]:
    """The classes and the functions of the product."""
    folders = ("storage_backends", "imap_wal", "pyspark_imap_wal", "rewrite_cli")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "hazelcast_plugin").glob("*/src/main/**/*.java")
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    classes = re.findall(r"^[a-z ]*(?:class|interface|record|enum) (\w+)", code, re.MULTILINE)
    aliases = re.findall(r"^([A-Z]\w+)\b[^=(\n]* = ", code, re.MULTILINE)
    return {*classes, *aliases}, set(re.findall(r"\b(\w+)\(", code))


def test_every_name_on_the_page_exists() -> None:
    classes, functions = defined()
    wrong, count = [], 0
    for name in quoted():
        if FILE.fullmatch(name):
            count, exists = count + 1, (ROOT / name).is_file()
        elif FOLDER.fullmatch(name):
            parents = (ROOT, ROOT / "imap_wal" / "agent", ROOT / "rewrite_cli")
            count, exists = count + 1, any((parent / name).is_dir() for parent in parents)
        elif named := CLASS.fullmatch(name):
            exists = named[1] in classes and (named[2] is None or named[2] in functions)
            count += 1
        else:
            continue
        if not exists:
            wrong.append(name)
    assert sorted(wrong) == []
    assert count > 50


def test_every_decision_that_is_named_has_a_page() -> None:
    """As a heading of a page, or in the list of those that were replaced. Where the page is named
    too, it is that one."""
    index = (DECISIONS / "index.md").read_text(encoding="utf-8")
    replaced = index.partition("Replaced:")[2]
    pages = {int(number): "" for number in re.findall(r"\b\d+\b", replaced)}
    for page in DECISIONS.glob("*.md"):
        for number in re.findall(r"^##? (\d+)\. ", page.read_text(encoding="utf-8"), re.MULTILINE):
            pages[int(number)] = page.name
    named = [
        (int(number), page)
        for number, page in NAMED.findall("\n".join(lines_with("[dD]ecisions? ?[0-9]+")))
    ]
    assert {number for number, _ in named} <= pages.keys()
    assert [(number, page) for number, page in named if page not in ("", pages[number])] == []
    assert len(named) > 30


def test_every_page_of_decisions_that_code_names_exists() -> None:
    lines = lines_with("docs/decisions/")
    named = {page for line in lines for page in re.findall(r"docs/decisions/([\w.-]*\w)", line)}
    assert sorted(page for page in named if not (DECISIONS / page).is_file()) == []
    assert len(named) > 5


def lines_with(pattern: str) -> list[str]:
    """The lines of code and text that have it, except those of this file."""
    command = ["git", "grep", "-hIE", pattern, "--", "*.py", "*.md", "*.java", ":!tests/docs/"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split("\n")
