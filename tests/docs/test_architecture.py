"""ARCHITECTURE.md: every file, folder, decision and name of the code on it exists, and it asks each
question once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = (
    "benchmarks/", "docs/", "hazelcast_plugin/", "imap_wal/", "pyspark_imap_wal/", "rewrite_cli/",
    "storage_backends/", "tests/",
)  # fmt: skip
FILE = re.compile(r"([\w./…-]+\.(?:py|java|md))(?:: ([\w.]+))?")
DECISION = re.compile(r"(?:docs/decisions/)?(\d{4})")


def quoted() -> Iterator[list[str]]:
    """The quoted names in each row of a table, item of a list, and paragraph."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\n|\n(?=\||\d+\. |- )", text):
        yield re.findall(r"`([^`\n]+)`", paragraph)


def files(path: str, folders: list[Path]) -> list[Path]:
    """The files that a path may mean. A short one is in one of the folders named before it, or is
    one of Java."""
    if "…" in path:
        start, _, end = path.partition("…/")
        return list((ROOT / start / "src").rglob(end))
    found = [folder / path for folder in (ROOT, *folders) if (folder / path).is_file()]
    return found or list((ROOT / "hazelcast_plugin" / "src").rglob(path))


def defines(file: Path, name: str) -> bool:
    text = file.read_text(encoding="utf-8")
    return all(
        re.search(rf"^\s*(?:(?:async )?def|class) {part}\b|^{part}\b.* = ", text, re.MULTILINE)
        for part in name.split(".")
    )


def test_no_question_is_asked_twice() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    asked = [line.split("|")[1] for line in lines if line.startswith("| ") and "`" in line]
    assert [each for each, count in Counter(asked).items() if count > 1] == []
    assert len(asked) > 80


def test_every_name_on_the_page_exists() -> None:
    wrong, count = [], 0
    for group in quoted():
        folders: list[Path] = []
        for each in group:
            if file := FILE.fullmatch(each):
                count += 1
                found = files(file[1], folders)
                folders += [path.parent for path in found]
                if not any(file[2] is None or defines(path, file[2]) for path in found):
                    wrong.append(each)
            elif decision := DECISION.fullmatch(each):
                if not list((ROOT / "docs" / "decisions").glob(f"{decision[1]}-*.md")):
                    wrong.append(each)
            elif each.startswith(TOP) and each.endswith("/") and not (ROOT / each).is_dir():
                wrong.append(each)
    assert wrong == []
    assert count > 100
