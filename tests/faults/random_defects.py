"""Picks places of the source at random, for the deliberate defects of `picked_defects`.

python -m tests.faults.random_defects --seed 9

It prints more places than needed, in the order of the pick. Leave out places where the change
cannot be noticed (a log line, a cache's size).
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.faults.mutation import ROOT

PACKAGES = ("write", "read", "rewrite", "retention", "manifest", "agent")
JAVA = "hazelcast_plugin/plugin/src/main/java/io/imapwal/hazelcast"
SETTLEMENT = (
    "settle/Comparison",
    "settle/Departures",
    "settle/MapOpening",
    "settle/MapState",
    "append/OrderGuard",
    "append/Outcomes",
    "settle/PartitionMoves",
    "settle/PartitionOwnership",
    "member/RecordStores",
    "append/Repeats",
    "settle/SettleOperation",
    "settle/Settlement",
    "settle/SettlementWorker",
)

COMPARISON, CALL, OFF_BY_ONE, LOGIC = "comparison", "call left out", "off by one", "logic"
KINDS = (COMPARISON, CALL, OFF_BY_ONE, LOGIC)
TURNED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
TURNED |= {"in": "not in", "not in": "in", "is": "is not", "is not": "is"}
SWAPPED = {"and": "or", "or": "and", "&&": "||", "||": "&&"}

# Greater numbers are sizes and times.
NUMBER_MAX = 2
# What only people read: metrics, reports, log lines, texts of errors.
UNREAD_FOLDERS = ("imap_wal/agent/monitoring/",)
UNREAD_FUNCTIONS = ("__repr__", "__str__", "__rich__")
UNREAD_CALLS = re.compile(r"(_?log(ger)?|_LOG|logging|warnings|progress)\.|_?(trace|say|note)\(")

_JAVA_KINDS = {
    COMPARISON: re.compile(r" (<|<=|>|>=|==|!=) "),
    CALL: re.compile(r"(?<=    )(?!return |throw |super\(|this\(|LOG)[\w.]+\(.*\);$"),
    OFF_BY_ONE: re.compile(r"(?<=[-+] )1\b"),
    LOGIC: re.compile(r" (&&|\|\|) "),
}


@dataclass(frozen=True, slots=True)
class Place:
    """`text[start:end]` of `file` becomes `new`."""

    file: str
    kind: str
    start: int
    end: int
    new: str

    def as_mutation(self, text: str) -> str:
        """The lines before and after, as arguments of a `Mutation`."""
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.end)
        while text.count(text[first:last]) != 1:
            first = text.rfind("\n", 0, first - 1) + 1
        old = text[first:last]
        new = text[first : self.start] + self.new + text[self.end : last]
        line = text.count("\n", 0, self.start) + 1
        return f"# {self.kind}, line {line}\n{self.file!r},\n{old!r},\n{new!r},\n"


class _Places(ast.NodeVisitor):
    """Lists the places of one Python file. Positions of `ast` are bytes of a line."""

    def __init__(self, file: str, text: str, chance: random.Random) -> None:
        self._file = file
        self._chance = chance
        self._text = text.encode()
        self._lines = [0]
        for line in self._text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._depth = 0
        self.places: list[Place] = []

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def _add(self, kind: str, span: tuple[int, int], new: str) -> None:
        start, end = (len(self._text[:position].decode()) for position in span)
        if self._depth:
            self.places.append(Place(self._file, kind, start, end, new))

    def _operators(self, kind: str, operands: list[ast.expr], others: dict[str, str]) -> None:
        names = "|".join(map(re.escape, sorted(others, key=len, reverse=True)))
        for left, right in pairwise(operands):
            start, end = self._span(left)[1], self._span(right)[0]
            match = re.search(names, self._text[start:end].decode())
            assert match is not None, (self._file, left.lineno)
            span = start + match.start(), start + match.end()
            self._add(kind, span, others[match.group()])

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in UNREAD_FUNCTIONS:
            return
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Its text is for people."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """It is for the type checker."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await):
            start, end = self._span(node)
            if UNREAD_CALLS.search(self._text[start:end].decode().partition("(")[0] + "("):
                return
            self._add(CALL, (start, end), "pass")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self._operators(COMPARISON, [node.left, *node.comparators], TURNED)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._operators(LOGIC, node.values, SWAPPED)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(LOGIC, (self._span(node)[0], self._span(node.operand)[0]), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int and node.value <= NUMBER_MAX:
            self._add(OFF_BY_ONE, self._span(node), str(node.value + self._chance.choice((1, -1))))


def of_python(package: str, chance: random.Random) -> list[Place]:
    places: list[Place] = []
    for path in sorted((ROOT / "imap_wal" / package).rglob("*.py")):
        file = str(path.relative_to(ROOT))
        if not file.startswith(UNREAD_FOLDERS):
            text = path.read_text()
            visitor = _Places(file, text, chance)
            visitor.visit(ast.parse(text))
            places += visitor.places
    return places


def of_java() -> list[Place]:
    return [place for name in SETTLEMENT for place in _of_class(f"{JAVA}/{name}.java")]


def _of_class(file: str) -> Iterator[Place]:
    at = 0
    for line in (ROOT / file).read_text().splitlines(keepends=True):
        code = line.rstrip("\n")
        if not code.strip().startswith(("*", "/*", "//")) and '"' not in code:
            for kind, pattern in _JAVA_KINDS.items():
                for match in pattern.finditer(code):
                    start, end = match.span(match.lastindex or 0)
                    yield Place(file, kind, at + start, at + end, _java_defect(kind, match))
        at += len(line)


def _java_defect(kind: str, match: re.Match[str]) -> str:
    if kind == CALL:
        return ""
    return "0" if kind == OFF_BY_ONE else (TURNED | SWAPPED)[match.group(1)]


def pick(places: list[Place], number: int, chance: random.Random) -> list[Place]:
    """Kinds are picked first: there are many more comparisons than calls."""
    left = {kind: [place for place in places if place.kind == kind] for kind in KINDS}
    picked: list[Place] = []
    for _ in range(number):
        of_kind = left[chance.choice([kind for kind in KINDS if left[kind]])]
        picked.append(of_kind.pop(chance.randrange(len(of_kind))))
    return picked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, default=20, help="places of each package")
    arguments = parser.parse_args()
    for package in (*PACKAGES, "java"):
        chance = random.Random(f"{arguments.seed} {package}")
        places = of_java() if package == "java" else of_python(package, chance)
        print(f"## {package}: {arguments.number} of {len(places)} places\n")
        for place in pick(places, arguments.number, chance):
            print(place.as_mutation((ROOT / place.file).read_text()))


if __name__ == "__main__":
    main()
