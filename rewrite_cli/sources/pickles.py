"""Reads pickles of unknown origin.

A pickle names functions of any module, which `pickle.loads` calls. Here it gets only what is in
`_NAMES`: containers, numbers, text, dates and times. None of these can be changed by a pickle: they
are static types of the interpreter, or objects without attributes.
"""

from __future__ import annotations

import io
import pickle
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from imap_wal.settings import Settings
from rewrite_cli.sources.source import Unreadable

BYTES_MAX = Settings().max_value_bytes
ITEMS_MAX = 10_000_000
"""The most items of a result, besides one for each byte of the pickle. A pickle of a few bytes can
have lists that contain one list many times: written out, they would fill the memory."""


class NeedsClass(Unreadable):
    """The pickle names a class or function that is not among `_NAMES`."""


class _Dict:
    """For OrderedDict, defaultdict and Counter: the default serializer stores a dict."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> dict[Any, Any]:
        return dict(arguments[-1]) if arguments and isinstance(arguments[-1], dict) else {}


class _Factory:
    """The argument of a defaultdict, such as `list`. A call of it would make objects of any
    size."""

    __slots__ = ()


class _Bytes:
    """`bytes()`: how protocols below 3 write b""."""

    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


class _Latin1:
    """`_codecs.encode`: how protocols below 3 write bytes."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise NeedsClass(f"it needs the encoding {encoding!r}")
        return text.encode("latin1")


class _ZoneClass:
    """ZoneInfo, of which a pickle needs only `_unpickle`."""

    __slots__ = ()


class _Getattr:
    """`getattr`: how a ZoneInfo names its `_unpickle`."""

    __slots__ = ()

    def __call__(self, owner: Any, name: str) -> Any:
        if type(owner) is not _ZoneClass or name != "_unpickle":
            raise NeedsClass("it needs the function builtins.getattr")
        return _NAMES["zoneinfo", "ZoneInfo._unpickle"]


class _Zone:
    __slots__ = ()

    def __call__(self, key: str, from_cache: bool) -> ZoneInfo:
        return ZoneInfo(key)


class _Reconstructor:
    """How protocols below 2 make a UUID."""

    __slots__ = ()

    def __call__(self, kind: Any, base: Any, state: Any) -> Any:
        if (kind, base, state) != (UUID, object, None):
            raise NeedsClass(f"it needs the class {getattr(kind, '__qualname__', kind)}")
        return object.__new__(UUID)


_NAMES: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "object"): object,
    ("builtins", "bytes"): _Bytes(),
    **{
        ("builtins", name): _Factory()
        for name in ("bool", "int", "float", "str", "list", "tuple", "dict")
    },
    ("_codecs", "encode"): _Latin1(),
    ("copyreg", "_reconstructor"): _Reconstructor(),
    **{("collections", name): _Dict() for name in ("OrderedDict", "defaultdict", "Counter")},
    **{("datetime", kind.__name__): kind for kind in (datetime, date, time, timedelta, timezone)},
    ("builtins", "getattr"): _Getattr(),
    ("zoneinfo", "ZoneInfo"): _ZoneClass(),
    ("zoneinfo", "ZoneInfo._unpickle"): _Zone(),
    ("decimal", "Decimal"): Decimal,
    ("uuid", "UUID"): UUID,
}
_OF_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Modules as protocols below 3 name them."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[_OF_PYTHON_2.get(module, module), name]
        except KeyError:
            raise NeedsClass(f"it needs the class {module}.{name}") from None


def load_safely(data: bytes) -> Any:
    """The object of a pickle. Runs no code of it. Raises `NeedsClass` if it names a class that is
    not known to be safe, and errors of any type if it is not a pickle."""
    value = _Unpickler(io.BytesIO(data)).load()
    _demand_small(value, ITEMS_MAX + len(data))
    return value


def load_trusted(data: bytes) -> Any:
    """The object of a pickle, which may run any code."""
    return pickle.loads(data)  # noqa: S301  --trust-pickle


def _demand_small(value: Any, items_max: int) -> None:
    left, bytes_left, waiting = items_max, BYTES_MAX, [value]
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if kind is str or kind is bytes:
            bytes_left -= len(item)
        elif kind is dict:
            left -= 2 * len(item)
            waiting += item
            waiting += item.values()
        elif kind in (list, tuple, set, frozenset):
            left -= len(item)
            waiting += item
        if left < 0 or bytes_left < 0:
            raise Unreadable("written out, it is too large: it has the same parts many times")
