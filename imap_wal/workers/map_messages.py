"""The requests about maps.

A map is [name, label]; the label is that of its serializer, "" if the client passed none. Keys and
values are as the log has them. Several operations are one request, so that the tasks of a
process share it: ["change" or "read", maps, operations]. In an operation, a map is its place among
`maps`. The answer of reads is a list of values. That of changes is [place, results], a result being
[answer] or [class, text, attributes]; `place`: that of the record of the request in the log, 0
without one that is durable. The hello has the newest record of the process, of any of its sockets:
[place, client, number of the request].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from imap_wal.embedded import decisions
from imap_wal.embedded.changes import MapState, WriteBatch
from imap_wal.embedded.decisions import Decision
from imap_wal.errors import ImapWalError, InvalidSetting, NotReadable
from imap_wal.workers.messages import NotUnderstood, error_fields, error_of

MAPS = "maps"
"""The kind in a hello."""

MapName: TypeAlias = tuple[str, str]
StateOf: TypeAlias = Callable[[MapName], MapState]
PlaceOf: TypeAlias = Callable[[MapState], int]
Acknowledged: TypeAlias = tuple[int, bytes, int]
"""A record of a request: its place, the client, and the number."""
NO_RECORD: Acknowledged = 0, bytes(16), 0


def read_record(acknowledged: Any) -> Acknowledged:
    """The record in a hello. Raises `NotUnderstood`."""
    match acknowledged:
        case [int(place), bytes(of), int(number)] if len(of) == 16 and place >= 0 and number >= 0:
            return place, of, number
    raise NotUnderstood("the first message is not a hello")


# ---- changes ----


def map_of(state: MapState) -> MapName:
    return state.name, state.serializer.name


def written(operations: Sequence[WriteBatch]) -> list[Any]:
    """Changes or reads as the fields of a request. Raises `NotSerializable`."""
    maps: dict[MapName, int] = {}

    def place_of(state: MapState) -> int:
        return maps.setdefault(map_of(state), len(maps))

    messages = [_written(operation, place_of) for operation in operations]
    return [list(maps), messages]


def _written(change: WriteBatch, place_of: PlaceOf) -> list[Any]:
    place = place_of(change.state)
    if not isinstance(change, Decision):
        return ["set", place, change.keys, change.values, list(change.expires.items())]
    name, *fields = change.call
    dump = change.state.serializer.dump
    match name:
        case "add":
            fields[1] = dump(fields[1])
        case "replace":
            fields = [_written(fields[0], place_of), dump(fields[1])]
        case "set_default" | "swap":
            fields[0] = _written(fields[0], place_of)
        case "together":
            changes, reads = fields
            read = [(place_of(state), list(values.items())) for state, values in reads.items()]
            fields = [[_written(change, place_of) for change in changes], read]
    return [name, place, *fields]


class RequestMaps:
    """The maps of a request, in this process. Raises `NotUnderstood`, and the errors of
    `state_of`."""

    def __init__(self, names: Any, state_of: StateOf) -> None:
        try:
            self._states = [state_of((_text(name), _text(label))) for name, label in names]
        except (TypeError, ValueError) as error:
            raise _not_of_this_version(error) from None

    def changes(self, messages: Any, *, known_only: bool) -> list[WriteBatch]:
        """The changes of the request; at least one."""
        try:
            if not messages:
                raise ValueError("there is no change")
            return [_change(message, self._state, known_only) for message in messages]
        except (TypeError, ValueError) as error:
            raise _not_of_this_version(error) from None

    def reads(self, messages: Any, now_ms: int) -> Iterator[bytes | int | None]:
        """The results of the reads of the request."""
        try:
            for message in messages:
                yield _value_of(message, self._state, now_ms)
        except (TypeError, ValueError) as error:
            raise _not_of_this_version(error) from None

    def _state(self, place: Any) -> MapState:
        return self._states[_index(place, len(self._states))]


def _not_of_this_version(error: Exception) -> Exception:
    """`TypeError` and `ValueError` may also be errors of imap-wal, such as `InvalidSetting`."""
    if isinstance(error, ImapWalError):
        return error
    return NotUnderstood(f"a request does not have the form of this version: {error}")


def _value_of(message: Any, state_of: Callable[[Any], MapState], now_ms: int) -> bytes | int | None:
    match message:
        case ["get", place, bytes(key)]:
            return state_of(place).get(key, now_ms)
        case ["expiry", place, bytes(key)]:
            return state_of(place).expiry(key, now_ms)
        case ["size", place]:
            return state_of(place).size(now_ms)
    raise ValueError(f"{message!r} is not a read")


def _change(message: Any, state_of: Callable[[Any], MapState], known_only: bool) -> WriteBatch:
    name, place, *fields = message
    state = state_of(place)
    load = state.serializer.load
    match name, *fields:
        case "set", list(keys), list(values), list(expires):
            if len(keys) != len(values) or not keys:
                raise ValueError("as many keys as values, and at least one")
            at = {_index(number, len(keys)): _index(until, 2**63) for number, until in expires}
            return WriteBatch(
                state, [*map(_bytes, keys)], [None if v is None else _bytes(v) for v in values], at
            )
        case "pop", bytes(key):
            return decisions.pop(state, key)
        case "pop_end", bool(last):
            return decisions.pop_end(state, last=last)
        case "set_default", change:
            return decisions.set_default(_single(change, state_of))
        case "add", bytes(key), bytes(amount):
            number = load(amount)
            if not decisions.is_number(number):
                unknown = InvalidSetting(
                    f"map {state.name!r} has serializer {state.serializer.name!r}, which the "
                    "process that serves the store does not know, so it cannot add; pass it as "
                    "`serializer` of `connect` in all processes, or use `change`"
                )
                return decisions.refused(state, unknown)
            return decisions.add(state, key, number, state.serializer.load_key(key))
        case "replace", change, bytes(old):
            return decisions.replace(_single(change, state_of), load(old))
        case "touch", bytes(key), int(until):
            return decisions.touch(state, key, _index(until, 2**63))
        case "swap", change, before, bool(keeps):
            before = None if before is None else _bytes(before)
            return decisions.swap(_single(change, state_of), before, keeps_expiry=keeps)
        case "together", list(changes), list(reads):
            made = [_change(change, state_of, known_only) for change in changes]
            if any(isinstance(change, Decision) for change in made):
                raise ValueError("changes that are made together depend on nothing")
            required: Mapping[MapState, dict[bytes, bytes | None]] = {
                state_of(of): {
                    _bytes(key): None if value is None else _bytes(value) for key, value in values
                }
                for of, values in reads
            }
            if not (made or required):
                raise ValueError("there is no change")
            return decisions.together(made, required)
        case ("clear",):
            return decisions.clear(state, known_only=known_only)
    raise ValueError(f"{name!r} is not a change")


def _single(message: Any, state_of: Callable[[Any], MapState]) -> WriteBatch:
    change = _change(message, state_of, known_only=True)
    if isinstance(change, Decision) or len(change) != 1:
        raise ValueError("not one change of one key")
    return change


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"{type(value).__name__} instead of bytes")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{type(value).__name__} instead of text")
    return value


def _index(value: Any, below: int) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{value!r} is not a number below {below}")
    return value


# ---- answers ----


def result_of(change: WriteBatch) -> list[Any]:
    """The result of an evaluated change as a message: its answer, or its error."""
    if not isinstance(change, Decision):
        return [None]
    try:
        return [_answer_of(change)]
    except Exception as error:  # noqa: BLE001  code of the user may raise anything
        return list(error_fields(error))


def _answer_of(decision: Decision) -> Any:
    answer, serializer = decision.answer, decision.state.serializer
    match decision.call[:1]:
        case ("pop",):
            return None if answer is None else [serializer.dump(answer[0])]
        case ("pop_end",):
            if answer is None:
                return None
            return [serializer.dump_key(answer[0]), serializer.dump(answer[1])]
        case ("add",):
            return serializer.dump(answer)
    return answer


def set_result(decision: Decision, result: Sequence[Any]) -> None:
    """The reverse."""
    try:
        if len(result) == 1:
            decision.answered(_read_answer(decision, result[0]))
        else:
            decision.answered(None, error_of(*result))
    except NotReadable as error:
        decision.answered(None, error)


def _read_answer(decision: Decision, answer: Any) -> Any:
    serializer = decision.state.serializer
    match decision.call[:1]:
        case ("pop",):
            return None if answer is None else (serializer.load(answer[0]),)
        case ("pop_end",):
            if answer is None:
                return None
            return serializer.load_key(answer[0]), serializer.load(answer[1])
        case ("add",):
            return serializer.load(answer)
    return answer
