"""Keys and values as JSON: for all commands, the readable columns of files, `query` and Spark.

    text, number, true, false, null, list    as they are
    bytes                                    {"hex": "00ff"}
    date, time, decimal, UUID                text; a time difference as ISO 8601, "P1DT2S"
    tuple, set                               a list; the items of a set are sorted by their JSON
    an extension of msgpack                  {"type": 42, "hex": "00ff"}
    NaN and infinities                       "nan", "inf", "-inf"                           lossy
    a dict with keys that are not text       each key is its JSON text; if two keys then have
                                             one text: {"pairs": [[key, value], …]}         lossy
    a lone surrogate (half of a character)   the character U+FFFD                           lossy
    a number of more than 2,400 digits       hexadecimal text                               lossy
    another object of Python                 its `repr`                                     lossy
    what cannot be decoded                   {"class": "com.acme.Order", "hex": "00ff"}     lossy

Two keys of one class never have the same text, so a join by it never mixes two keys. If the JSON
alone does not determine the key's bytes, they are added: {"key": …, "hex": "00ff"}. So no text of a
key is lossy, except for a key that cannot be decoded.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgpack
from msgpack import ExtType, Timestamp

from imap_wal import seatunnel
from imap_wal.decoder import Decoder, Opaque, Pairs
from imap_wal.entry import KEY, KEY_CLASS, ORDER, PICKLE, RAW, Row, is_clear, is_msgpack
from imap_wal.extension import duration_text

NUMBERS: Final = "NaN, an infinity or a number of thousands of digits is shown as text"
DICT_KEYS: Final = "keys of a dict that are not text are shown as text or in pairs"
CHARACTERS: Final = "a lone surrogate, which UTF-8 cannot encode, is shown as U+FFFD"
OBJECTS: Final = "another Python object is shown as its repr"
UNDECODED: Final = "it cannot be decoded here, and is shown as its class and its bytes"

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_DECIMAL_BITS = 2**13
"""About 2,500 digits. Python refuses to print longer numbers."""


def plain(value: Any, lost: set[str] | None = None) -> Any:
    """A decoded value as an object that `json.dumps` writes as valid JSON. What is lossy (see the
    table above) is added to `lost`."""
    return _plain(value, set() if lost is None else lost)


def json_of(value: Any, lost: set[str] | None = None) -> str:
    """A decoded value as JSON, as `plain`."""
    return _encode(plain(value, lost))


def key_of(row: Row, decoder: Decoder, lost: set[str] | None = None) -> Any:
    """The key of a row as an object for `json.dumps`; None for a clear."""
    if is_clear(row):
        return None
    key = decoder.key(row)
    if isinstance(key, Opaque):
        return plain(key, lost)
    inexact: set[str] = set()
    shown = plain(key, inexact)
    if not inexact and _is_exact(row, key):
        return shown
    return {"key": shown, "hex": row[KEY].hex()}


def value_of(row: Row, decoder: Decoder, lost: set[str] | None = None) -> Any:
    """The value of a row as an object for `json.dumps`; None for a tombstone too."""
    return plain(decoder.value(row), lost)


def key_json(row: Row, decoder: Decoder, lost: set[str] | None = None) -> str | None:
    """The key of a row as JSON; None for a clear."""
    return None if is_clear(row) else json_of_plain(key_of(row, decoder, lost))


def json_of_plain(shown: Any) -> str:
    """The JSON of an object from this module."""
    return _encode(shown)


def text(value: Any, lost: set[str] | None = None) -> str:
    """A decoded value on one line, for people: text without quotation marks, all else as JSON. The
    result may contain any character, also control characters."""
    match value:
        case str():
            return _characters(value, set() if lost is None else lost)
        case Opaque():
            if lost is not None:
                lost.add(UNDECODED)
            return str(value)
        case _:
            return json_of(value, lost)


def finite(value: Any) -> Any:
    """An object for `json.dumps`, with text for NaN and infinities."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value


def _plain(value: Any, lost: set[str]) -> Any:
    match value:
        case str():
            return _characters(value, lost)
        case None | bool():
            return value
        case int():
            if value.bit_length() > _DECIMAL_BITS:
                lost.add(NUMBERS)
                return hex(value)
            return int(value)
        case float():
            if not math.isfinite(value):
                lost.add(NUMBERS)
                return str(value)
            return value
        case Opaque():
            lost.add(UNDECODED)
            return {"class": _characters(value.label, lost), "hex": bytes(value.data).hex()}
        case bytes() | bytearray() | memoryview():
            return {"hex": bytes(value).hex()}
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case timedelta():
            return duration_text(value)
        case Timestamp():
            return _moment(value)
        case dict():
            return _dict(value.items(), lost)
        case Pairs():
            return _dict(value.pairs, lost)
        case ExtType():
            return {"type": value.code, "hex": value.data.hex()}
        case list() | tuple():
            return [_plain(item, lost) for item in value]
        case set() | frozenset():
            return sorted((_plain(item, lost) for item in value), key=json_of_plain)
        case _:
            lost.add(OBJECTS)
            return _characters(repr(value), lost)


def _moment(value: Timestamp) -> Any:
    """A timestamp of msgpack, which typed maps have for times with a zone. One that is finer than a
    microsecond, or before the year 1 or after 9999, has no text."""
    moment = _EPOCH + timedelta(microseconds=value.nanoseconds // 1000)
    try:
        if value.nanoseconds % 1000 == 0:
            return (moment + timedelta(seconds=value.seconds)).isoformat()
    except OverflowError:
        pass
    return {"type": -1, "hex": value.to_bytes().hex()}


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _dict(items: Iterable[tuple[Any, Any]], lost: set[str]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    count = 0
    for key, item in items:
        count += 1
        if isinstance(key, str):
            name = _characters(key, lost)
        else:
            lost.add(DICT_KEYS)
            name = json_of_plain(_plain(key, lost))
        shown[name] = _plain(item, lost)
    if len(shown) == count:
        return shown
    lost.add(DICT_KEYS)
    return {"pairs": [[_plain(key, lost), _plain(item, lost)] for key, item in items]}


def _characters(words: str, lost: set[str]) -> str:
    if words.isascii():
        return str(words)
    try:
        words.encode()
    except UnicodeEncodeError:
        lost.add(CHARACTERS)
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in words)
    return str(words)


# ---- which bytes a key has ----


def _is_exact(row: Row, key: Any) -> bool:
    """Whether no other key of this class has the same JSON."""
    data, label = row[KEY], row[KEY_CLASS]
    if seatunnel.is_simple(data, label):
        return True
    if row[ORDER][1]:  # of a member
        return _is_exact_of_member(data, label, key)
    return label == RAW or ((is_msgpack(label) or label == PICKLE) and _is_exact_msgpack(data, key))


def _is_exact_msgpack(data: bytes, key: Any) -> bool:
    """Whether these are the bytes that msgpack writes for this key, and JSON has its type."""
    return _has_type_of_json(key) and msgpack.packb(key, use_bin_type=True) == data


def _has_type_of_json(key: Any) -> bool:
    if type(key) is tuple:
        return all(map(_has_type_of_json, key))
    return key is None or type(key) in (bool, int, float, str, bytes)


_HEADER_BYTES = 8
"""Partition hash and type of Hazelcast's Data."""
_NO_HASH = bytes(4)
_OF_JAVA: Final = {
    "java.lang.Byte": (-3, 1),
    "java.lang.Short": (-6, 2),
    "java.lang.Integer": (-7, 4),
    "java.lang.Long": (-8, 8),
    "java.lang.Float": (-9, 4),
    "java.lang.Double": (-10, 8),
    "java.util.UUID": (-21, 16),
}
"""Class → its type in Hazelcast's Data, and the size of its content: two contents are never the
same value."""
_STRING, _STRING_TYPE = "java.lang.String", -11


def _is_exact_of_member(data: bytes, label: str, key: Any) -> bool:
    if len(data) < _HEADER_BYTES or data[:4] != _NO_HASH:
        return False
    (kind,) = struct.unpack_from(">i", data, 4)
    content = data[_HEADER_BYTES:]
    if label == _STRING:
        words = key.encode() if isinstance(key, str) else b""
        return kind == _STRING_TYPE and content == struct.pack(">i", len(words)) + words
    return (kind, len(content)) == _OF_JAVA.get(label)


def keys_of(text: str) -> set[bytes]:
    """The bytes of all keys with this JSON, of any class: the opposite of `key_json`. Bytes that no
    key has may be among them."""
    try:
        shown = json.loads(text)
    except (ValueError, RecursionError):
        return set()  # no key has this text
    found: set[bytes] = set()
    if isinstance(shown, dict):
        with suppress(ValueError, TypeError):
            found.add(bytes.fromhex(shown.get("hex", "")))
    try:
        key = _key_in(shown)
        with suppress(OverflowError):
            found.add(msgpack.packb(key, use_bin_type=True))
    except (ValueError, TypeError):
        return found  # JSON alone does not determine such a key
    found.update(seatunnel.forms(key))
    for kind, content in _contents_in_java(key):
        found.add(_NO_HASH + struct.pack(">i", kind) + content)
    return found


def _key_in(shown: Any) -> Any:
    """The key whose JSON this is. Raises ValueError and TypeError if it may have several."""
    if isinstance(shown, list):
        return tuple(map(_key_in, shown))
    if isinstance(shown, dict):
        if [*shown] != ["hex"]:
            raise ValueError
        return bytes.fromhex(shown["hex"])
    return shown


def _contents_in_java(key: Any) -> Iterable[tuple[int, bytes]]:
    """The types of Hazelcast's Data, and their contents, that are shown like this key."""
    if isinstance(key, str):
        data = key.encode("utf-8", "replace")
        yield _STRING_TYPE, struct.pack(">i", len(data)) + data
        with suppress(ValueError):
            yield _OF_JAVA["java.util.UUID"][0], UUID(key).bytes
        return
    for form, kinds in (("bhiq", int), ("fd", float)):
        if type(key) is not kinds:
            continue
        for letter in form:
            with suppress(struct.error, OverflowError):
                yield _TYPES[letter], struct.pack(f">{letter}", key)


_TYPES: Final = {"b": -3, "h": -6, "i": -7, "q": -8, "f": -9, "d": -10}
"""Letter of `struct` → the number's type in Hazelcast's Data."""
