"""Could a map have given the answers in a recorded history of one key?

A history is linearizable if every operation can be given one moment between its start and its end,
so that all of them in the order of these moments are what a single map in one thread would have
answered. This is the search of Wing and Gong with Lowe's improvements: events in the order of
time, and at each end of an operation the set of all states that are still possible. An operation is
given its moment as late as possible. Porcupine undoes steps of its search; here, states that are no
longer possible leave the set.

Four things are added:

unknown     the caller does not know the outcome: it takes effect at any later time, or never
again       Hazelcast repeats an operation whose member left: it may take effect twice before it
            ends
dominance   of two equal states, the one that used fewer unknown operations suffices
symmetry    of unknown operations with the same effect, such as removes, the one that can happen for
            the shortest time is used first
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Kind = Literal[
    "get", "contains", "put", "set", "remove", "delete", "put_if_absent", "replace", "clear"
]
READS: tuple[Kind, ...] = ("get", "contains")
UNKNOWN = math.inf
"""The end of an operation whose outcome its caller does not know."""


class _Unseen:
    def __repr__(self) -> str:
        return "?"


UNSEEN: Any = _Unseen()
"""The result of an operation that has none, or whose caller did not get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`result` of put and remove: the value before; of put_if_absent: the value that was there;
    of replace (if it is `expected`): whether it did; of contains: whether there was a value. None
    is: absent."""

    kind: Kind
    start: float
    end: float
    value: Any = None
    expected: Any = None
    result: Any = UNSEEN
    client: str = ""

    @property
    def observed(self) -> bool:
        """Its answer says, or may mean, that it changed nothing, so the answer is from memory alone
        and the log has nothing of it."""
        match self.kind:
            case "get" | "contains" | "clear":
                return True
            case "remove":
                return self.result is None
            case "put_if_absent":
                return self.result is not None and self.result is not UNSEEN
            case "replace":
                return self.result is False
        return False


def step(operation: Operation, state: Any) -> tuple[bool, Any]:
    """Whether it can have had its result in this state, and the state after it."""
    after, answer = state, state
    match operation.kind:
        case "contains":
            answer = state is not None
        case "put":
            after = operation.value
        case "remove":
            after = None
        case "set" | "delete" | "clear":
            after, answer = operation.value, UNSEEN
        case "put_if_absent":
            after = operation.value if state is None else state
        case "replace":
            answer = state is not None and state == operation.expected
            after = operation.value if answer else state
    unseen = operation.result is UNSEEN or answer is UNSEEN
    return unseen or operation.result == answer, after


@dataclass(frozen=True, slots=True)
class _Possible:
    """A state, which of the running operations have had their moment, and which of those that need
    not take effect did."""

    state: Any
    done: frozenset[int] = frozenset()
    used: frozenset[int] = frozenset()


def _effect(operation: Operation) -> tuple[Any, ...]:
    """Equal for operations without an answer that do the same to every state."""
    if operation.kind == "replace":
        return operation.kind, operation.expected, operation.value
    if operation.kind == "put_if_absent":
        return operation.kind, operation.value
    return "write", None if operation.kind in ("remove", "delete", "clear") else operation.value


class _Set:
    """Possibilities, without those that another one dominates. `work`: how many were compared."""

    def __init__(self, found: Iterable[_Possible] = ()) -> None:
        self.work = 0
        self._used: dict[tuple[Any, frozenset[int]], list[frozenset[int]]] = {}
        for each in found:
            self.add(each)

    def add(self, possible: _Possible) -> bool:
        """False: nothing new."""
        those = self._used.setdefault((possible.state, possible.done), [])
        self.work += 1 + len(those)
        if any(used <= possible.used for used in those):
            return False
        those[:] = [used for used in those if not possible.used <= used]
        those.append(possible.used)
        return True

    def __iter__(self) -> Iterator[_Possible]:
        for (state, done), those in self._used.items():
            for used in those:
                yield _Possible(state, done, used)

    def __len__(self) -> int:
        return sum(map(len, self._used.values()))


class TooLarge(Exception):
    """The search has ended without a result: there are too many possible orders."""


@dataclass(frozen=True)
class Violation:
    """No order explains this operation; `possible` is what the key could have been just before."""

    operation: Operation
    possible: list[Any]


@dataclass
class Checker:
    """One key. `feed` takes what happened since the last time; operations that are unknown stay
    possible, whatever is fed later. Raises `TooLarge` if the end of one operation takes more than
    `bound` comparisons of possibilities."""

    initial: Any = None
    again: bool = False
    bound: int = 2_000_000
    _possible: _Set = field(init=False)
    _open: dict[int, Operation] = field(init=False, default_factory=dict)
    _number: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._possible = _Set([_Possible(self.initial)])

    @property
    def states(self) -> set[Any]:
        return {each.state for each in self._possible}

    def copy(self) -> Checker:
        other = replace(self)
        other._possible, other._open, other._number = (
            _Set(self._possible),
            dict(self._open),
            self._number,
        )
        return other

    def feed(self, operations: Sequence[Operation]) -> Violation | None:
        """The first operation that cannot be explained. All that began must have ended, or be
        unknown. After a violation the checker cannot be used any more."""
        first = self._number
        self._number += 2 * len(operations)
        ends = [(each.end, 1, at) for at, each in enumerate(operations) if each.end != UNKNOWN]
        for _, is_end, at in sorted(
            [*((each.start, 0, at) for at, each in enumerate(operations)), *ends]
        ):
            number, operation = first + 2 * at, operations[at]
            if not is_end:
                self._open[number] = operation
                if self.again and operation.end != UNKNOWN and operation.kind not in READS:
                    self._open[number + 1] = replace(operation, end=UNKNOWN, result=UNSEEN)
            else:
                before = self._possible
                self._possible = self._ended(number)
                if not len(self._possible):
                    return Violation(operation, sorted({each.state for each in before}, key=repr))
        return None

    def _ended(self, number: int) -> _Set:
        """What is possible now that this operation must have had its moment."""
        found = _Set()
        gone = {number, number + 1}  # itself, and its repetition

        def keep(state: Any, done: frozenset[int], used: frozenset[int]) -> None:
            found.add(_Possible(state, done - gone, used - gone))

        work = 0
        others = any(other != number and each.end != UNKNOWN for other, each in self._open.items())
        for possible in self._possible:
            if number in possible.done:
                keep(possible.state, possible.done, possible.used)
                continue
            fits, after = step(self._open[number], possible.state)
            if fits and not others:
                # Whatever else was used before it can be used after it, or was overwritten by it.
                keep(after, possible.done, possible.used)
                continue
            reachable = self._reachable(possible, number, self.bound - work - found.work)
            work += reachable.work
            for each in reachable:
                fits, after = step(self._open[number], each.state)
                if fits:
                    keep(after, each.done, each.used)
        for over in gone:
            self._open.pop(over, None)
        return found

    def _reachable(self, start: _Possible, ending: int, bound: int) -> _Set:
        """What can be reached from `start` by operations that are under way, in any order."""
        seen = _Set([start])
        known = [
            (number, operation)
            for number, operation in self._open.items()
            if operation.end != UNKNOWN and number != ending
        ]
        alike = self._unknown_alike(ending)
        waiting = [start]
        while waiting:
            here = waiting.pop()
            seen.work += len(known) + len(alike)
            found = [
                _Possible(after, here.done | {number}, here.used)
                for number, operation in known
                if number not in here.done
                for fits, after in [step(operation, here.state)]
                if fits
            ]
            for numbers in alike:
                number = next((each for each in numbers if each not in here.used), None)
                if number is None:
                    continue
                fits, after = step(self._open[number], here.state)
                if fits and after != here.state:
                    found.append(_Possible(after, here.done, here.used | {number}))
            waiting += [there for there in found if seen.add(there)]
            if seen.work > bound:
                raise TooLarge
        return seen

    def _unknown_alike(self, ending: int) -> list[list[int]]:
        """The unknown operations, those with the same effect together. First come repetitions,
        which are possible only until their operation ends, in the order of these ends."""
        groups: dict[Any, list[tuple[float, int]]] = {}
        for number, operation in self._open.items():
            if operation.end == UNKNOWN and number != ending:
                once = self._open.get(number - 1) if number % 2 else None
                until = once.end if once is not None else UNKNOWN
                alone = operation.result is not UNSEEN
                effect = (number,) if alone else _effect(operation)
                groups.setdefault(effect, []).append((until, number))
        return [[number for _, number in sorted(those)] for those in groups.values()]


def check(
    operations: Sequence[Operation], *, initial: Any = None, again: bool = False
) -> Violation | None:
    """Checks a complete history."""
    return Checker(initial, again).feed(operations)
