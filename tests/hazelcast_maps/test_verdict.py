"""The list of tests that may fail is true: a run says what is missing in it, and what is too
much."""

from __future__ import annotations

import pytest

from tests.hazelcast_maps.__main__ import CLASSES
from tests.hazelcast_maps.runs import Result
from tests.hazelcast_maps.verdict import LIST, findings, read_list

EXCLUDED = read_list(
    "# a remark\n"
    "any-store | map.T#counts | each put loads first\n"
    "refused | map.T#idle[a, b] | docs/limits.md\n"
    "unstable | map.T#late | needs an idle machine\n"
    "slow | map.T#many | 100,000 puts\n"
)
AS_LISTED = [
    Result("map.T#counts[1]", "failed", failure="x"),
    Result("map.T#counts[2]", "unfinished"),
    Result("map.T#idle[a, b]", "failed"),
    Result("map.T#idle[c]", "passed"),
    Result("map.T#late", "failed"),
    Result("map.T#put", "passed", maps=2),
]


def found(results: list[Result], store: str = "wal") -> list[str]:
    return list(findings(results, EXCLUDED, store, ["map.T"]))


def test_a_run_as_listed_has_no_findings() -> None:
    assert found(AS_LISTED) == []


@pytest.mark.parametrize("outcome", ["failed", "unfinished"])
def test_a_failure_that_is_not_listed_is_found(outcome: str) -> None:
    assert found([*AS_LISTED, Result("map.T#get", outcome, failure="lost")]) == [
        f"map.T#get: {outcome}: lost"
    ]


def test_a_listed_test_that_passes_is_found() -> None:
    assert found([Result("map.T#counts[3]", "passed"), *AS_LISTED]) == [
        "map.T#counts[3] passes, but is listed as any-store"
    ]


def test_a_listed_test_that_did_not_run_is_found() -> None:
    ignored = [Result(each.test, "ignored") for each in AS_LISTED[2:3]]
    assert found(AS_LISTED[:2] + ignored + AS_LISTED[3:]) == [
        "map.T#idle[a, b] is listed, but did not run"
    ]


def test_a_class_whose_maps_have_no_map_store_is_found() -> None:
    bare = [*AS_LISTED[:-1], Result("map.T#put", "passed")]
    assert found(bare) == ["map.T: no map got the map store"]


def test_other_map_stores_have_to_fail_less() -> None:
    assert [each.split(":")[0] for each in found(AS_LISTED, "simple")] == ["map.T#idle[a, b]"]
    assert [each.split(":")[0] for each in found(AS_LISTED[:3], "none")] == [
        "map.T#counts[1]",
        "map.T#counts[2]",
        "map.T#idle[a, b]",
        "map.T#late is listed, but did not run",
    ]


@pytest.mark.parametrize("line", ["other | map.T | x", "refused | map.T#a", "map.T", "refused"])
def test_a_line_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        read_list(line)


def test_the_stored_list_names_classes_that_run() -> None:
    classes = CLASSES.read_text("utf-8").split()
    assert classes == sorted(set(classes))
    assert {each.of_class for each in read_list(LIST.read_text("utf-8")).values()} <= set(classes)
