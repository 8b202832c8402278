"""The judge on known records: a lost change, a removed key that returned, a stale answer of a
frozen member, and the longest time without a success."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.nemesis.clients import Attempt, Key, Outcome, outages, stored, told_apart
from tests.nemesis.judge import READER, Judge, table
from tests.nemesis.linearizability import UNKNOWN, UNSEEN, Kind, Operation
from tests.nemesis.together import (
    CLEARED,
    DESTROYED,
    EMPTIED_KEYS,
    GROUPS,
    TRANSACTED,
    emptied,
    keys_of,
    value_of,
    with_groups,
)

KEY, OTHER = Key("m", "k1"), Key("m", "k2")


def attempt(
    kind: Kind,
    start: float,
    value: Any = None,
    *,
    result: Any = UNSEEN,
    outcome: Outcome = "acknowledged",
    seconds: float = 0.5,
    key: Key = KEY,
) -> Attempt:
    end = start + seconds if outcome == "acknowledged" else UNKNOWN
    return Attempt(
        key,
        Operation(kind=kind, start=start, end=end, value=value, result=result, client="0"),
        outcome,
        start + seconds,
    )


def read(start: float, result: Any) -> Attempt:
    """A read of the judge, when the cluster works again."""
    operation = dataclasses.replace(attempt("get", start, result=result).operation, client=READER)
    return Attempt(KEY, operation, "acknowledged", operation.end)


def judgements(*attempts: Attempt, stale: tuple[float, float] | None = None) -> list[str]:
    return [each.judgement for each in Judge([KEY, OTHER]).judge(attempts, stale=stale)]


def test_an_acknowledged_change_has_no_finding() -> None:
    """The map has the value that was acknowledged."""
    assert judgements(attempt("set", 0, "a"), read(1, "a")) == []


def test_a_lost_acknowledged_change_is_found() -> None:
    """In the live map, with the history of its key."""
    (finding,) = Judge([KEY]).judge([attempt("set", 0, "a"), read(1, None)])
    assert (finding.judgement, finding.key) == ("live map", KEY)
    assert "only 'a'" in finding.text
    assert "✗" in finding.story
    assert "set('a')" in finding.story


def test_a_removed_key_that_returns_is_found() -> None:
    assert judgements(attempt("set", 0, "a"), attempt("remove", 1, result="a"), read(2, "a")) == [
        "live map"
    ]


def test_an_unknown_outcome_may_count_and_a_refused_not() -> None:
    """Either result is right for an unknown one; a refused change that counts is a finding."""
    for result in (None, "a"):
        assert judgements(attempt("set", 0, "a", outcome="unknown"), read(1, result)) == []
    (finding,) = Judge([KEY]).judge([attempt("set", 0, "a", outcome="refused"), read(1, "a")])
    assert "that value was refused" in finding.text


def test_a_wrong_answer_is_found_in_the_history() -> None:
    """The last state of the key is right."""
    wrong = (
        attempt("set", 0, "a"),
        attempt("set", 1, "b"),
        attempt("get", 2, result="a"),
        read(3, "b"),
    )
    assert judgements(*wrong) == ["history"]


def test_a_stale_answer_is_allowed_only_during_a_fault() -> None:
    """It is counted then, and a finding otherwise."""
    stale = [
        attempt("set", 0, "a"),
        attempt("set", 1, "b"),
        attempt("replace", 2, "c", result=False),
        attempt("get", 3, result="a"),
        read(9, "b"),
    ]
    judge = Judge([KEY])
    assert judge.judge(stale, stale=(2.5, 4)) == []
    assert judge.stale_reads == 1
    assert judgements(*stale, stale=(5, 8)) == ["history"]


def test_a_change_of_a_stale_value_is_a_finding() -> None:
    """Also during a fault that allows stale answers."""
    both = (
        attempt("set", 0, "a"),
        attempt("set", 1, "b"),
        attempt("put", 2, "c", result="a"),
        read(9, "c"),
    )
    assert judgements(*both, stale=(0, 8)) == ["history"]


def test_damage_is_reported_once() -> None:
    judge = Judge([KEY])
    assert len(judge.judge([attempt("set", 0, "a"), read(1, None)])) == 1
    assert judge.judge([attempt("set", 2, "b"), read(3, "b")]) == []
    (finding,) = judge.restarted({KEY: "b"}, {KEY: "a"})
    assert finding.judgement == "restart"
    assert judge.judge([read(5, "a")]) == []
    (finding,) = judge.queried({KEY: "a"}, {})
    assert finding.judgement == "query"


def test_an_unknown_change_cannot_happen_after_a_restart() -> None:
    judge = Judge([KEY])
    assert judge.judge([attempt("set", 0, "a", outcome="unknown"), read(1, None)]) == []
    assert judge.restarted({}, {}) == []
    (finding,) = judge.judge([read(5, "a")])
    assert finding.judgement == "live map"


def test_an_outage_ends_with_the_next_answer() -> None:
    """It begins with the first attempt that failed."""
    attempts = [
        attempt("set", 0, "a"),
        attempt("set", 100, "b", outcome="refused"),
        attempt("set", 101, "c", outcome="unknown", seconds=5),
        attempt("set", 104, "d", seconds=3),
        attempt("set", 200, "e", key=OTHER, seconds=0.25),
    ]
    assert outages(attempts) == {KEY: 7.0, OTHER: 0.25}


def test_an_outage_begins_after_the_last_success() -> None:
    """An attempt without an answer does not extend it, if others succeeded meanwhile."""
    attempts = [
        attempt("set", 100, "a", outcome="unknown", seconds=4),
        attempt("set", 103, "b", seconds=0.5),
        attempt("set", 105, "c", outcome="refused"),
        attempt("set", 105.5, "d", outcome="refused"),
        attempt("set", 105.5, "e", seconds=2.5),
    ]
    assert outages(attempts) == {KEY: 4.5}


def test_an_outage_ends_with_the_last_failure_before_a_success() -> None:
    """It is not known when the key could be written again, because no caller tried."""
    attempts = [
        attempt("set", 100, "a", outcome="refused", seconds=2),
        attempt("set", 105, "b", outcome="refused", seconds=1),
        attempt("set", 115, "c", seconds=0.5),
    ]
    assert outages(attempts) == {KEY: 6.0}


def test_a_damaged_value_is_shown_as_it_is() -> None:
    """It is marked as damaged."""
    assert told_apart(stored("1 of 2")) == "1 of 2"
    assert told_apart(None) is None
    assert told_apart(f"{stored('1 of 2')}x") == "damaged: " + f"{stored('1 of 2')}x"[:80]


def test_table_shows_the_end_of_a_long_history() -> None:
    rows = [attempt("set", number, f"v{number}") for number in range(100)]
    shown = table(rows)
    assert "v99" in shown
    assert "v10" not in shown


# ---- many keys at once ----


def test_a_key_that_survives_a_clear_is_found() -> None:
    """After an unknown one, each key may have its value or not."""
    first, second = [key for key in EMPTIED_KEYS if key.map == CLEARED][:2]
    for outcome, found in (("acknowledged", ["live map"]), ("unknown", [])):
        judge = Judge(EMPTIED_KEYS)
        history = [attempt("set", 0, "a", key=key) for key in (first, second)]
        cleared = emptied(EMPTIED_KEYS, CLEARED, 1.0, outcome, client="0")  # type: ignore[arg-type]
        end = cleared[0].ended
        seen = [
            dataclasses.replace(read(end + 1, "a"), key=first),
            dataclasses.replace(read(end + 1, None), key=second),
        ]
        judgements = [each.judgement for each in judge.judge([*history, *cleared, *seen])]
        assert judgements == found


def test_a_destroyed_key_that_returns_with_a_restart_is_found() -> None:
    key = next(key for key in EMPTIED_KEYS if key.map == DESTROYED)
    judge = Judge(EMPTIED_KEYS)
    destroyed = emptied(EMPTIED_KEYS, DESTROYED, 1.0, "acknowledged", client="0")
    gone = dataclasses.replace(read(destroyed[0].ended + 1, None), key=key)
    assert judge.judge([attempt("set", 0, "a", key=key), *destroyed, gone]) == []
    (finding,) = judge.restarted({}, {key: "a"})
    assert (finding.judgement, finding.key) == ("restart", key)


def test_a_transaction_in_effect_in_part_is_found() -> None:
    """Also one that was refused; an unknown one counts as a whole, or not at all."""
    group = GROUPS[0]
    names = keys_of(group)
    half = value_of(group, {names[0]: "b", names[1]: "b", names[2]: "a", names[3]: "a"})
    outcome: Outcome
    for outcome, result, found in (
        ("acknowledged", "b", []),
        ("acknowledged", half, ["live map"]),
        ("acknowledged", "a", ["live map"]),
        ("unknown", "a", []),
        ("unknown", "b", []),
        ("unknown", half, ["live map"]),
        ("refused", "b", ["live map"]),
        ("refused", "a", []),
    ):
        history = [
            attempt("set", 0, "a", key=group),
            attempt("set", 1, "b", outcome=outcome, key=group),
            dataclasses.replace(read(9, result), key=group),
        ]
        judgements = [each.judgement for each in Judge(GROUPS).judge(history)]
        assert judgements == found, (outcome, result)


def test_the_contents_have_one_value_of_each_group() -> None:
    group, other = GROUPS[:2]
    contents = {Key(TRANSACTED, name): "a" for name in keys_of(group)} | {KEY: "v"}
    assert with_groups(contents) == {group: "a", KEY: "v"}
    contents[Key(TRANSACTED, keys_of(other)[1])] = "b"
    assert with_groups(contents)[other] == "torn: [None, 'b', None, None]"
