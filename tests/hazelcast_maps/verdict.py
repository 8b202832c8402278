"""Which tests may fail, and what a run says against that list.

A line of `excluded.txt` is `kind | test | reason`. A test without parameters in brackets is the one
with all its parameters. The kinds:

any-store   fails with any map store: with the plug-in, and with one that only does what the
            interface says
without     fails without a map store too
refused     the plug-in refuses the configuration of the map, or the value; the reason names where
            the documentation says so
slow        does not run: it takes minutes with a store that answers each put on its own
unstable    sometimes fails, for a reason that is not the map store's; the result is not judged
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.hazelcast_maps.runs import Result

LIST = Path(__file__).with_name("excluded.txt")
FAIL = {
    "wal": frozenset({"any-store", "without", "refused"}),
    "simple": frozenset({"any-store", "without"}),
    "none": frozenset({"without"}),
}
"""The kinds of tests that must fail with each map store."""
KINDS = FAIL["wal"] | {"unstable", "slow"}


@dataclass(frozen=True, slots=True)
class Excluded:
    kind: str
    test: str
    reason: str

    @property
    def of_class(self) -> str:
        return self.test.partition("#")[0]

    @property
    def method(self) -> str:
        return self.test.partition("#")[2]


def read_list(text: str) -> dict[str, Excluded]:
    """By test. Raises ValueError for a line that is none, or names a test again."""
    found: dict[str, Excluded] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        kind, _, rest = line.partition(" | ")
        test, _, reason = rest.partition(" | ")
        if kind not in KINDS or not reason or test in found:
            raise ValueError(f"line {number}: {line!r} is not `kind | test | reason`, or repeated")
        found[test] = Excluded(kind, test, reason)
    return found


def findings(
    results: Iterable[Result], excluded: dict[str, Excluded], store: str, classes: Iterable[str]
) -> Iterator[str]:
    """What is wrong: a test that fails and may not, or passes and may not, or is listed and did not
    run; a class without any map with the map store. `classes` are those that ran."""
    ran: set[str] = set()
    maps: Counter[str] = Counter()
    for each in results:
        maps[each.test.partition("#")[0]] += each.maps
        line = excluded.get(each.test) or excluded.get(each.test.partition("[")[0])
        if line is not None and each.outcome != "ignored":
            ran.add(line.test)
        kind = line.kind if line is not None else ""
        if kind == "unstable" or each.outcome == "ignored":
            continue
        must_fail = kind in FAIL[store]
        if each.outcome == "passed" and must_fail:
            yield f"{each.test} passes, but is listed as {kind}"
        elif each.outcome != "passed" and not must_fail:
            yield f"{each.test}: {each.outcome}: {each.failure}"
    if store != "none":
        yield from (f"{name}: no map got the map store" for name in classes if not maps[name])
    of_these = set(classes)
    for test, line in excluded.items():
        if line.of_class in of_these and line.kind != "slow" and test not in ran:
            yield f"{test} is listed, but did not run"
