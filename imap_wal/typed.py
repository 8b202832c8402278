"""Keys and values with types, by msgspec: `store.map("orders", key=str, value=Order)`.

value   ─▶ msgspec's encoder ─▶ msgpack; read again and compared before it is accepted
key     ─▶ its plain parts ─▶ the default serializer: equal keys have the same bytes
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, Protocol, Union, get_args, get_origin, overload
from uuid import UUID

import msgspec

from imap_wal.entry import TYPED
from imap_wal.errors import InvalidSetting, NotReadable, NotSerializable
from imap_wal.serializer import (
    K,
    MsgpackSerializer,
    V,
    derived,
    equal_number,
    parts_bytes,
    shown,
    step,
)

_SIMPLE_KEYS = (str, int, bytes)
_KEPT = (bytes, datetime, date, time, timedelta, Decimal, UUID)
"""Types in keys for which the default serializer has a form."""
_LEVELS_MAX = 500


class Codec(Protocol):
    """Teaches typed maps the classes of a library that msgspec does not know."""

    def has(self, kind: type) -> bool:
        """Whether it writes and reads values of this class."""
        ...

    def encode(self, value: Any) -> Any:
        """The value as one that msgspec knows, such as a dict. It must have all of the value: two
        values with the same result are equal. Raises `NotSerializable`."""
        ...

    def decode(self, kind: Any, data: Any) -> Any:
        """The original value, from what `encode` returned. `kind`: its type in the annotation.
        Raises any error for bad data."""
        ...


class TypedSerializer(Generic[K, V]):
    """Keys and values of these types, as msgpack, by msgspec. `Store.map` makes one from its
    arguments `key` and `value`; pass one as `serializer` to give codecs or a name.

    The types are those of msgspec, and models of pydantic. A value is accepted only if it is equal
    after a read; a datetime with a zone is read as the same moment in UTC. Each value that is read
    is checked against its type: `NotReadable` names the map, the key and the place in the value."""

    @overload
    def __init__(
        self, key: type[K], value: type[V], *, codecs: Sequence[Codec] = (), name: str = ""
    ) -> None: ...
    @overload
    def __init__(
        self: TypedSerializer[Any, Any],
        key: Any,
        value: Any,
        *,
        codecs: Sequence[Codec] = (),
        name: str = "",
    ) -> None: ...
    def __init__(
        self, key: Any, value: Any, *, codecs: Sequence[Codec] = (), name: str = ""
    ) -> None:
        """
        Args:
            key: the type of the keys.
            value: the type of the values.
            codecs: for classes that msgspec does not know, such as `imap_wal.NumpyCodec()`.
            name: the class of the entries in the log; "": from the names of the types, as in
                `msgpack[str, Order]`. Pass the class of the map in the log if the types have other
                names now and can read its entries.

        Raises:
            InvalidSetting: msgspec does not know a type, or a map cannot have the name.
        """
        self.name = name or f"{TYPED}{written(key)}, {written(value)}]"
        if not (self.name.startswith(TYPED) and self.name.endswith("]")):
            raise InvalidSetting(
                f"the name of a typed serializer is {name!r}; it takes one as in {TYPED}str, Order]"
            )
        self._codecs: tuple[Codec, ...] = (*codecs, _Pydantic())
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._encoded).encode
        self._keys = MsgpackSerializer()
        self._key, self._value = self.types = key, value
        self.simple_key: Any = key if key in _SIMPLE_KEYS else None
        """The type of the keys, if the default serializer has them as they are."""
        try:
            self._decode = msgspec.msgpack.Decoder(value, dec_hook=self._decoded).decode
            msgspec.msgpack.Decoder(key, dec_hook=self._decoded)
        except Exception as error:  # of any annotation
            raise InvalidSetting(
                f"a map cannot have keys {written(key)} and values {written(value)}: {error}"
            ) from error

    # ---- values ----

    def dump(self, value: V) -> bytes:
        try:
            data = self._encode(value)
            if self._decode(data) == value:
                return data
        except Exception:  # noqa: BLE001  also of arrays, which have no plain `==`
            return self._dump_unequal(value)
        return self._dump_unequal(value)

    def _dump_unequal(self, value: V) -> bytes:
        """The bytes of a value that does not say that it equals what is read. Raises
        `NotSerializable` if it differs."""
        try:
            data = self._encode(value)
        except Exception as error:
            place, problem = self._unknown(value)
            raise NotSerializable(self._advised(problem or str(error)), place) from error
        try:
            same = self._decode(data)
        except Exception as error:
            place, problem = _placed(error, self._decode, data)
            raise NotSerializable(self._advised(problem), place) from error
        difference = self._difference(value, same)
        if difference is not None:
            place, problem = difference
            raise NotSerializable(self._advised(problem), place)
        return data

    def _advised(self, problem: str) -> str:
        return f"{problem}; the map has values of type {written(self._value)}"

    def load(self, data: bytes) -> V:
        try:
            value: V = self._decode(data)
        except Exception as error:
            place, problem = _placed(error, self._decode, data)
            raise _not_readable("value", self._value, data, problem).at(place) from error
        return value

    # ---- keys ----

    def dump_key(self, key: K) -> bytes:
        if type(key) is self.simple_key:
            return self._keys.dump_key(key)
        try:
            data = parts_bytes(self._key_parts(key))
            same = self.load_key(data)
            hash(key)
        except Exception as error:
            problem = getattr(error, "problem", error)
            raise NotSerializable(
                f"a {type(key).__name__} cannot be a key of this map ({problem}); it takes keys of "
                f"type {written(self._key)}"
            ) from error
        if same != key:
            raise NotSerializable(
                f"it would be read as {shown(same)}; the map takes keys of type "
                f"{written(self._key)}"
            )
        return data

    def load_key(self, data: bytes) -> K:
        plain = self._keys.load_key(data)
        if type(plain) is self.simple_key:
            key: K = plain
            return key
        try:
            key = msgspec.convert(plain, self._key, dec_hook=self._decoded)
        except Exception as error:
            raise _not_readable("key", self._key, data, str(error)) from error
        return key

    def _key_parts(self, key: Any) -> Any:
        """A key as the default serializer knows it, without its classes."""
        if isinstance(key, Enum):
            return self._key_parts(key.value)
        if isinstance(key, tuple):
            return tuple(map(self._key_parts, key))
        if isinstance(key, frozenset):
            return frozenset(map(self._key_parts, key))
        try:
            return msgspec.to_builtins(
                key,
                builtin_types=_KEPT,
                str_keys=False,
                enc_hook=self._encoded,
                order="deterministic",
            )
        except TypeError:
            number = equal_number(key)
            if number is None:
                raise
            return number

    # ---- classes that msgspec does not know ----

    def _encoded(self, value: Any) -> Any:
        codec = self._codec(type(value))
        return derived(value) if codec is None else codec.encode(value)

    def _decoded(self, kind: Any, data: Any) -> Any:
        codec = self._codec(get_origin(kind) or kind)
        if codec is None:
            raise NotImplementedError(f"msgspec does not know the class {written(kind)}")
        return codec.decode(kind, data)

    def _codec(self, kind: type) -> Codec | None:
        return next((codec for codec in self._codecs if codec.has(kind)), None)

    # ---- what is wrong with a value ----

    def _unknown(self, value: Any, level: int = 0) -> tuple[str, str]:
        """Where in a value something cannot be encoded, and what; ("", ""): nowhere."""
        if level > _LEVELS_MAX:
            return "", f"it has more than {_LEVELS_MAX} levels"
        for place, part in _parts(value):
            inner, problem = self._unknown(part, level + 1)
            if problem:
                return place + inner, problem
        try:
            self._encode(value)
        except NotSerializable as error:
            return error.place, error.problem
        except OverflowError:
            return "", "an int beyond 64 bits"
        except Exception as error:  # noqa: BLE001  of its own methods
            return "", f"a {type(value).__name__}" + f": {error}" * bool(str(error))
        return "", ""

    def _difference(self, value: Any, same: Any) -> tuple[str, str] | None:
        """The place where a value differs from what is read, and how."""
        if isinstance(value, datetime) and isinstance(same, datetime) and value.tzinfo:
            value = value.astimezone(UTC)  # other zones may say that it is not equal
        with suppress(Exception):  # of arrays in it, for example
            if self._codec(type(value)) is None and bool(value == same):
                return None
            if value != value and same != same and repr(value) == repr(same):
                return None  # NaN
        if type(value) is type(same):
            pairs, others = list(_parts(value)), list(_parts(same))
            if pairs and [place for place, _ in pairs] == [place for place, _ in others]:
                for (place, part), (_, other) in zip(pairs, others, strict=True):
                    difference = self._difference(part, other)
                    if difference is not None:
                        return place + difference[0], difference[1]
                return None
            if self._codec(type(value)) and self._encode(value) == self._encode(same):
                return None
        return "", f"it would be read as {shown(same)}, and is {shown(value)}"


def _not_readable(what: str, kind: Any, data: bytes, problem: str) -> NotReadable:
    return NotReadable(
        f"the {what} {shown(data)} cannot be read as {written(kind)}: {problem}; open the map with "
        "a type that can read it (docs/how-to/typed.md), or replace or delete the entry",
        data,
    )


def _parts(value: Any) -> Sequence[tuple[str, Any]]:
    """The places and the parts of a value that has fields or items."""
    names: Sequence[str] = ()
    if isinstance(value, dict):
        return [(step(key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", ())
        if not names:
            return [(f"[{number}]", item) for number, item in enumerate(value)]
    elif isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif is_dataclass(value):
        names = [field.name for field in fields(value)]
    elif hasattr(type(value), "__attrs_attrs__"):
        names = [field.name for field in type(value).__attrs_attrs__]
    elif _Pydantic().has(type(value)):
        names = list(type(value).__pydantic_fields__)
    return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]


_STEP = re.compile(r"\[\.\.\.\]|\[\d+\]|\.[^.\[]+")


def _placed(error: Exception, decode: Callable[[bytes], Any], data: bytes) -> tuple[str, str]:
    """The place and the text of an error of msgspec. It names no keys of dicts (`$.by[...]`), so
    each is tried."""
    problem, _, where = str(error).partition(" - at `")
    if where.startswith("key"):
        problem = f"a key of it: {problem}"
    path = where.partition("$")[2].removesuffix("`")
    place = ""
    try:
        root = holder = [msgspec.msgpack.decode(data)]
        index: Any = 0
        for part in _STEP.findall(path):
            node, key = holder[index], part
            if part == "[...]":
                for key in node:
                    holder[index] = {key: node[key]}
                    if _fails(decode, root[0], str(error)):
                        break
                holder[index] = node
                place += step(key)
            else:
                key = part[1:] if part[0] == "." else int(part[1:-1])
                place += part
            holder, index = node, key
    except Exception:  # noqa: BLE001  better this place than no error
        place = path
    return place, problem


def _fails(decode: Callable[[bytes], Any], tree: Any, text: str) -> bool:
    try:
        decode(msgspec.msgpack.encode(tree))
    except Exception as error:  # noqa: BLE001  it is compared
        return str(error) == text
    return False


def written(kind: Any) -> str:
    """A type as in its annotation, without modules."""
    args, origin = get_args(kind), get_origin(kind)
    if kind is None or kind is NoneType:
        return "None"
    if kind is ... or isinstance(kind, str):
        return "..." if kind is ... else kind
    if origin is Annotated:
        return written(args[0])
    if origin is Union or origin is UnionType:
        return " | ".join(map(written, args))
    name = getattr(origin or kind, "__name__", None) or repr(origin or kind)
    if not args:
        return name
    return f"{name}[{', '.join(map(repr if origin is Literal else written, args))}]"


class _Pydantic:
    """Models of pydantic. They are written as the JSON that pydantic writes, in msgpack."""

    def __init__(self) -> None:
        self._adapters: dict[Any, Any] = {}

    def has(self, kind: type) -> bool:
        return hasattr(kind, "__pydantic_validator__") and not is_dataclass(kind)

    def _adapter(self, kind: Any) -> Any:
        if kind not in self._adapters:
            from pydantic import TypeAdapter  # it has been imported by the class

            self._adapters[kind] = TypeAdapter(kind)
        return self._adapters[kind]

    def encode(self, value: Any) -> Any:
        return self._adapter(type(value)).dump_python(
            value, mode="json", by_alias=True, round_trip=True, warnings="error"
        )

    def decode(self, kind: Any, data: Any) -> Any:
        return self._adapter(kind).validate_json(msgspec.json.encode(data))


# numpy in typed maps: `TypedSerializer(str, np.ndarray, codecs=[imap_wal.NumpyCodec()])`.

_KINDS = "?biufcmMSU"
"""Kinds of dtypes whose bytes are the whole value; not Python objects, structures, text of any
length."""
_PLAIN_KINDS = "?biufSU"


class NumpyCodec:
    """Arrays as `{"dtype": "<f8", "shape": [2, 3], "data": bytes}`; a scalar that a number or text
    of Python equals, as that. Not for object arrays, structured dtypes and classes derived from
    `ndarray`."""

    def __init__(self) -> None:
        import numpy as np

        self._numpy = np

    def has(self, kind: type) -> bool:
        return issubclass(kind, self._numpy.ndarray | self._numpy.generic)

    def encode(self, value: Any) -> Any:
        is_scalar = isinstance(value, self._numpy.generic)
        plain = value.item() if is_scalar and value.dtype.kind in _PLAIN_KINDS else None
        if type(plain) in (bool, int, float, str, bytes):
            return plain
        array = self._numpy.asarray(value)
        dtype = array.dtype
        if dtype.kind not in _KINDS or not (is_scalar or type(value) is self._numpy.ndarray):
            raise NotSerializable(f"a {type(value).__name__} of dtype {dtype}")
        return {"dtype": dtype.str, "shape": list(array.shape), "data": array.tobytes()}

    def decode(self, kind: Any, data: Any) -> Any:
        of_scalar = isinstance(kind, type) and issubclass(kind, self._numpy.generic)
        if of_scalar and not isinstance(data, dict):
            scalar = kind(data)
            if scalar == data or scalar != scalar:
                return scalar
            raise ValueError(f"{data!r} is no {kind.__name__}")
        dtype = self._numpy.dtype(data["dtype"])
        if dtype.kind not in _KINDS:
            raise ValueError(f"an array of dtype {dtype}")
        array = self._numpy.frombuffer(data["data"], dtype).reshape(data["shape"]).copy()
        if not of_scalar:
            return array
        if not isinstance(array[()], kind):
            raise ValueError(f"a {dtype} is no {kind.__name__}")
        return array[()]
