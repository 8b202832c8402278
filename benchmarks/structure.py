"""python -m benchmarks.structure: the size of the code, its cycles, and which modules an operation
runs through, as JSON lines. Nothing here depends on the speed of the machine."""

from __future__ import annotations

import ast
import json
import re
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGES = ("storage_backends", "imap_wal", "pyspark_imap_wal", "rewrite_cli")
JAVA = ROOT / "hazelcast_plugin"
FILLERS = {"each", "found", "what", "known", "kept", "given", "here"}
"""Names that do not say which thing is meant: a segment, a snapshot, a reader."""

Row = dict[str, Any]


def run() -> list[Row]:
    """One row for each number."""
    return [
        {"measure": measure, "of": of, "value": value}
        for measure, of, value in (*_sizes(), *_names(), *_imports(), *_java(), *_paths())
    ]


def _modules() -> dict[str, ast.Module]:
    """Module → what it contains."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_bytes()
        )
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }


def _lines(folder: Path, pattern: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.rglob(pattern))


def _sizes() -> Iterator[tuple[str, str, object]]:
    for package in PACKAGES:
        yield "lines", package, _lines(ROOT / package, "*.py")
    yield "lines", "product in Python", sum(_lines(ROOT / name, "*.py") for name in PACKAGES)
    yield (
        "lines",
        "product in Java",
        sum(_lines(folder, "*.java") for folder in JAVA.rglob("src/main") if folder.is_dir()),
    )
    yield "lines", "tests in Python", _lines(ROOT / "tests", "*.py")
    texts = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    yield "words", "texts", sum(len(path.read_text().split()) for path in texts)
    yield (
        "words",
        "decisions",
        sum(len(path.read_text().split()) for path in (ROOT / "docs/decisions").glob("*.md")),
    )


def _names() -> Iterator[tuple[str, str, object]]:
    names = Counter(
        node.arg if isinstance(node, ast.arg) else node.id
        for tree in _modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and _is_bound(node))
    )
    share = sum(names[name] for name in FILLERS) / names.total()
    yield "filler names", "% of what is bound", round(100 * share, 1)


def _is_bound(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _imports() -> Iterator[tuple[str, str, object]]:
    modules = _modules()
    importers: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    importers[name if name in modules else node.module].add(module)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importers[alias.name].add(module)
    yield "modules", "product in Python", len(modules)
    yield (
        "modules with one importer",
        "product in Python",
        sum(len(importers[module]) == 1 for module in modules),
    )


def _java() -> Iterator[tuple[str, str, object]]:
    uses = java_uses()
    yield "files", "product in Java", len(uses)
    cycles = [group for group in strongly_connected(uses) if len(group) > 1]
    yield "files in the largest cycle", "product in Java", max(map(len, cycles), default=0)


def java_uses() -> dict[str, set[str]]:
    """MODULE/Class → the classes that it names. Classes of one package see each other without an
    import; each Maven module may use `wire`."""
    sources = {
        f"{module}/{path.stem}": path.read_text()
        for module in ("wire", "plugin", "seatunnel")
        for path in (JAVA / module / "src/main").rglob("*.java")
    }
    comment = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', flags=re.DOTALL)

    def used(place: str, text: str) -> set[str]:
        module = place.partition("/")[0]
        names = set(re.findall(r"\b[A-Z]\w+", comment.sub("", text)))
        places = {f"{of}/{name}" for name in names for of in (module, "wire")}
        return (places & set(sources)) - {place}

    return {place: used(place, text) for place, text in sources.items()}


def strongly_connected(uses: dict[str, set[str]]) -> list[set[str]]:
    """The groups of which each member reaches each other one."""

    def reached(name: str) -> set[str]:
        seen, waiting = set[str](), [name]
        while waiting:
            for other in uses[waiting.pop()] - seen:
                seen.add(other)
                waiting.append(other)
        return seen

    reach = {name: reached(name) for name in uses}
    groups: dict[str, set[str]] = {}
    for name in uses:
        if name not in groups:
            group = {other for other in reach[name] if name in reach[other]} | {name}
            groups |= dict.fromkeys(group, group)
    return list({id(group): group for group in groups.values()}.values())


def _paths() -> Iterator[tuple[str, str, object]]:
    from click.testing import CliRunner

    import imap_wal
    from rewrite_cli.cli import group

    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log"
        with imap_wal.open(log, auto_rewrite_percentage=0) as store:
            orders = store.map("orders")
            orders["a"] = 1
            yield from _visited("a put", lambda: orders.__setitem__("b", 2))
        yield from _visited("an open of one segment", lambda: imap_wal.open(log).close())
        CliRunner().invoke(group, ["archive", log, "--yes"], catch_exceptions=False)
        yield from _visited(
            "the command rewrite",
            lambda: CliRunner().invoke(group, ["rewrite", log], catch_exceptions=False),
        )
        yield from _visited("an open of a snapshot", lambda: imap_wal.open(log).close())


def _visited(name: str, call: Callable[[], object]) -> Iterator[tuple[str, str, object]]:
    """The product's modules and functions that this call runs, in all threads."""
    folders = tuple(f"{ROOT / package}/" for package in PACKAGES)
    functions: set[tuple[str, str]] = set()
    switches = 0
    last = ""

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal switches, last
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folders):
            functions.add((code.co_filename, code.co_qualname))
            switches += code.co_filename != last
            last = code.co_filename

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    yield "modules visited", name, len({file for file, _ in functions})
    yield "functions visited", name, len(functions)
    yield "switches between modules", name, switches


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row))
