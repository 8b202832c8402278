"""Names of classes and of values."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("storage_backends", "imap_wal", "pyspark_imap_wal", "rewrite_cli")
FILLERS = {"each", "found", "what", "known", "kept", "given", "here"}
"""They do not say which thing is meant: a segment, a snapshot, the newest manifest."""
SHARE_MAX = 0.004


@cache
def modules() -> Mapping[Path, ast.Module]:
    return {
        path.relative_to(ROOT): ast.parse(path.read_text("utf-8"))
        for package in PACKAGES
        for path in ROOT.glob(f"{package}/**/*.py")
    }


def bound(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names that are given to values, and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def share_of_fillers(trees: Iterable[ast.Module]) -> float:
    names = Counter(name for tree in trees for name, _ in bound(tree))
    return sum(names[name] for name in FILLERS) / names.total()


def test_names_say_which_thing_is_meant() -> None:
    """Some are left, such as `what` is wrong with a file: it is a public name of the errors."""
    product = modules()
    places = [
        f"{path}:{line} {name}"
        for path, tree in product.items()
        for name, line in bound(tree)
        if name in FILLERS
    ]
    assert share_of_fillers(product.values()) <= SHARE_MAX, "\n".join(places)


def test_a_filler_name_is_noticed() -> None:
    named = ast.parse("for segment in wal:\n    size = segment.size\n" * 200)
    filler = ast.parse("found = [each for each in wal]\ndef look(known, *, what): ...")
    assert share_of_fillers([named]) == 0
    assert share_of_fillers([named, filler]) > SHARE_MAX


def test_no_two_classes_have_one_name() -> None:
    """A reader finds the class at the first guess. Private classes are known in one module only.
    The public name of `imap_wal.stream.Transaction` says which one it is."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    assert len(places) > 300
    shared = {name: lines for name, lines in places.items() if len(lines) > 1}
    assert shared.keys() == {"Transaction"}, shared
