"""The JSON of manifests: checked fields, packed lists, checksums."""

from __future__ import annotations

import json
import threading
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias, TypeVar

import google_crc32c
import msgspec
from msgspec import Meta

from imap_wal.errors import CorruptLog

INDENTED_BYTES_MAX = 16 * 1024
UNPACKED_BYTES_MAX = 256 * 1024 * 1024
"""Of a packed list; 10,000 snapshots take a few megabytes."""
MANIFEST_ADVICE = (
    "bring it back from a copy, or write a repaired copy of the log with `imap-wal repair`"
)
OTHER_FORMAT_ADVICE = "use the release of imap-wal that wrote it; the file was not changed"

Whole: TypeAlias = Annotated[int, Meta(ge=0)]
V = TypeVar("V")


@contextmanager
def whole(file: str) -> Iterator[None]:
    """Raise `CorruptLog` for errors in the fields of a manifest with a correct checksum."""
    try:
        yield
    except (ValueError, LookupError, TypeError, RecursionError, zlib.error) as error:
        said = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise CorruptLog(
            file,
            0,
            f"this manifest matches its checksum, but its fields are not valid: {said}",
            MANIFEST_ADVICE,
        ) from error


_preparing = threading.Lock()
_prepared: set[Any] = set()
"""Types that msgspec has examined. It caches what it finds, and other threads see an entry while it
is incomplete: two first uses at the same time end the process (msgspec 0.22)."""


def checked(data: Any, kind: type[V]) -> V:
    """JSON as a value of this type. Raises ValueError unless every field has exactly its type (a
    float is not an int)."""
    if kind in _prepared:
        return msgspec.convert(data, kind, str_keys=True)
    with _preparing:
        try:
            return msgspec.convert(data, kind, str_keys=True)
        finally:
            _prepared.add(kind)


def require(data: Mapping[str, Any], *names: str) -> None:
    """Raise KeyError if one of these fields is missing: every manifest has them."""
    for name in names:
        data[name]


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass with slots, by name. `asdict` would copy each value deeply, and a
    manifest may have thousands."""
    return {name: getattr(value, name) for name in value.__slots__}


def without_defaults(document: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The document without the fields of these names that are empty."""
    silent = {name for name in names if not document[name]}
    return {name: value for name, value in document.items() if name not in silent}


def packed(document: Any) -> str:
    """JSON, deflated, in base64."""
    return b64encode(
        zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)
    ).decode()


def unpacked(text: str) -> Any:
    """The inverse of `packed`. Raises ValueError, for example for more than `UNPACKED_BYTES_MAX`: a
    few kilobytes of deflated zeros take gigabytes."""
    whole = zlib.decompressobj()
    document = whole.decompress(b64decode(text), UNPACKED_BYTES_MAX)
    if not whole.eof:
        raise ValueError(f"a packed list does not end within {UNPACKED_BYTES_MAX} bytes")
    return json.loads(document)


def canonical_json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _checksum(canonical: bytes) -> str:
    return f"{google_crc32c.value(canonical):08x}"


_BEFORE_REST = len('{"checksum":"01234567",')


def with_checksum(body: Mapping[str, Any]) -> bytes:
    """The canonical JSON, with its checksum as the first field. It is on several lines, to be
    readable, unless it is large."""
    canonical = canonical_json(body)
    checksum = _checksum(canonical)
    if len(canonical) < INDENTED_BYTES_MAX:
        text = json.dumps({"checksum": checksum, **body})
        return msgspec.json.format(text, indent=1).encode()  # json would indent in Python
    return b'{"checksum":"%s",' % checksum.encode() + canonical[1:]


def checksum_of_rest(text: bytes) -> str:
    """The checksum of a manifest on one line without parsing it."""
    return f"{google_crc32c.extend(google_crc32c.value(b'{'), text[_BEFORE_REST:]):08x}"
