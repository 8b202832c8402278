"""What the processes send each other: a length of four bytes, and one msgpack value.

    hello     ["hello", VERSION, client]                  client: 16 random bytes
    welcome   ["welcome", VERSION, pid, largest message, largest value]
    request   [number, kind, …]                           one at a time on each socket
    answer    [number, "ok", value] or [number, "error", class, text];
              before it, any number of [number, "part", value]

A map is [name, label]; the label is that of its serializer, "" if the client has none in mind. Keys
and values are as the log has them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgpack

from imap_wal import errors
from imap_wal.embedded import decisions
from imap_wal.embedded.changes import MapState, WriteBatch
from imap_wal.embedded.decisions import Decision
from imap_wal.errors import ImapWalError, InvalidSetting, TooLarge

VERSION = 1
HELLO_BYTES_MAX = 1024
SMALL_BYTES = 64 * 1024
PART_BYTES = 1024 * 1024

MapName: TypeAlias = tuple[str, str]
StateOf: TypeAlias = Callable[[MapName], MapState]

_LENGTH = struct.Struct(">I")


class NotUnderstood(ImapWalError):
    """A message does not have the form of this version. Use the same version of imap-wal in all
    processes."""


def send(connection: socket.socket, message: Sequence[Any], bytes_max: int) -> None:
    """Raises `TooLarge` before anything is sent."""
    data = msgpack.packb(message)
    if len(data) > bytes_max:
        raise TooLarge(
            f"a request of {len(data)} bytes is larger than the {bytes_max} bytes that the process "
            "that serves the store accepts; split it, or raise ring_bytes there"
        )
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(
    connection: socket.socket,
    bytes_max: int,
    has_begun: Callable[[int], object] = lambda size: None,
) -> list[Any]:
    """The next message. `has_begun` is called with its size before it is read. Raises
    ConnectionError at the end of the connection, OSError, and `NotUnderstood`."""
    (size,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if size > bytes_max:
        raise NotUnderstood(f"a message of {size} bytes is too large; at most {bytes_max} are read")
    has_begun(size)
    try:
        message = msgpack.unpackb(_read(connection, size), use_list=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise NotUnderstood(f"a message is not msgpack: {error}") from None
    if not isinstance(message, list) or not message:
        raise NotUnderstood("a message is not a list")
    return message


def _read(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 2**20))
        if not part:
            raise ConnectionResetError("the other process has closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# ---- changes ----


def map_of(state: MapState) -> MapName:
    return state.name, state.serializer.name


def written(change: WriteBatch) -> list[Any]:
    """A change as a message. Raises `NotSerializable`."""
    if not isinstance(change, Decision):
        return [
            "set",
            map_of(change.state),
            change.keys,
            change.values,
            list(change.expires.items()),
        ]
    name, *fields = change.call
    dump = change.state.serializer.dump
    match name:
        case "add":
            fields[1] = dump(fields[1])
        case "replace":
            fields = [written(fields[0]), dump(fields[1])]
        case "set_default" | "swap":
            fields[0] = written(fields[0])
        case "together":
            changes, reads = fields
            read = [(map_of(state), list(values.items())) for state, values in reads.items()]
            fields = [list(map(written, changes)), read]
    return [name, map_of(change.state), *fields]


def read_change(message: Any, state_of: StateOf, *, known_only: bool) -> WriteBatch:
    """The change of a message, for the maps of this process. Raises `NotUnderstood`, and the errors
    of `state_of`."""
    try:
        return _change(message, state_of, known_only)
    except (TypeError, ValueError, IndexError) as error:
        if isinstance(error, ImapWalError):
            raise
        raise NotUnderstood(f"a change does not have the form of this version: {error}") from None


def _change(message: Any, state_of: StateOf, known_only: bool) -> WriteBatch:
    name, (map_name, label), *fields = message
    state = state_of((_text(map_name), _text(label)))
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
                raise InvalidSetting(
                    f"map {state.name!r} has serializer {label!r}, which the process that serves "
                    "the store does not know, so it cannot add; pass it as `serializer` of "
                    "`connect` in all processes, or use `change`"
                )
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
                state_of((_text(of), _text(kind))): {
                    _bytes(key): None if value is None else _bytes(value) for key, value in values
                }
                for (of, kind), values in reads
            }
            if not (made or required):
                raise ValueError("there is no change")
            return decisions.together(made, required)
        case ("clear",):
            return decisions.clear(state, known_only=known_only)
    raise ValueError(f"{name!r} is not a change")


def _single(message: Any, state_of: StateOf) -> WriteBatch:
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


def answer_of(decision: Decision) -> Any:
    """The answer of a decision as a message. Raises its error."""
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


def read_answer(decision: Decision, answer: Any) -> Any:
    """The reverse."""
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


# ---- errors ----

_BUILT_IN: Mapping[str, type[Exception]] = {"TypeError": TypeError, "ValueError": ValueError}
_FROM_TEXT = (
    *("NotAppended", "NotSerializable", "TooLarge", "OutcomeUnknown", "Fenced", "LostRace"),
    *("Closed", "MissingNode", "InvalidSetting", "StorageUnavailable"),
)


def error_fields(error: Exception) -> tuple[str, str]:
    """The class and the text of an error."""
    return type(error).__name__, str(error)


def error_of(name: Any, text: Any) -> Exception:
    """The error of an answer."""
    if name in _FROM_TEXT:
        made: Exception = getattr(errors, name)(str(text))
        return made
    return _BUILT_IN.get(name, ImapWalError)(str(text))
