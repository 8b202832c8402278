"""The shapes of all requests, as in `docs/protocol.md`. A header is validated completely before any
part of it is used.

`read` returns one of the classes below, in which every field has exactly its type and range. A
number is never a float or a bool, and nothing is nested deeper than its shape. For any other
header, it returns `Malformed`, which names the field. See decision 29 in docs/decisions/order.md.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias, get_args

import msgpack
from msgspec import Meta, MsgspecError, Raw, Struct
from msgspec.msgpack import Decoder

from imap_wal.agent.bounds import (
    HEADER_BYTES_MAX,
    LOAD_BYTES_MAX,
    LOAD_KEYS_MAX,
    TAIL_BYTES_MAX,
)
from imap_wal.entry import COPIES_MAX, HIGHEST, LOWEST, PARTITIONS_MAX, in_array
from imap_wal.format import COUNT_MAX
from imap_wal.manifest.claims import MEMBERS_MAX
from imap_wal.read.view import SALT_BYTES

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""A UUID of a cluster, member or plug-in, as Java and Python write it."""
LABEL_MAX = 255
"""Characters of a version or a token."""
PATH_MAX = 2000
"""Characters of a path inside a root."""
NAMES_MAX = 10_000
"""Maps in one request."""
REPORTED_NAMES_MAX = 50
"""Names of one kind in a report, of each member."""
TEXT_MAX = 1000
"""Characters of the reason why a header is malformed: msgspec's errors may quote a whole field, and
the reason waits in memory, and is sent to a peer that perhaps never reads it."""
_FRONT_BYTES = 64
"""`kind` and `number` are within the first bytes of a header, this many."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=HIGHEST)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Id: TypeAlias = Annotated[str, Meta(pattern=rf"\A{UUID}\Z")]
MaybeId: TypeAlias = Annotated[str, Meta(pattern=rf"\A({UUID})?\Z")]
Label: TypeAlias = Annotated[str, Meta(max_length=LABEL_MAX)]
Path: TypeAlias = Annotated[str, Meta(min_length=1, max_length=PATH_MAX)]
Ids: TypeAlias = Annotated[list[Id], Meta(max_length=MEMBERS_MAX)]


NamesOfKind: TypeAlias = tuple[Number, Annotated[list[Label], Meta(max_length=REPORTED_NAMES_MAX)]]
Report: TypeAlias = tuple[NamesOfKind, NamesOfKind, NamesOfKind, NamesOfKind]
"""Which maps and structures of a member are durable: `imap_wal.agent.membership.reports.KINDS`."""


class About(Struct, frozen=True):
    """The member that says hello. `protocol`, `protocol_max`: the lowest and the highest version of
    the protocol that it speaks; 0: only the lowest. `view`: the incarnation of its cluster, as far
    as it knows; 0: not known. `partition_count` 0 or None: not given. `token`: the cluster's; "":
    not given. `shared`: it appends each change to several agents, so its session has the same
    number on all of them. `acks`: how many of them acknowledge a change before its caller returns;
    0: not given."""

    cluster_id: Id
    plugin_uuid: Id
    purpose: Literal["write", "read"]
    protocol: int = 1
    protocol_max: int = 0
    member_uuid: MaybeId = ""
    plugin_version: Label = ""
    partition_count: Annotated[int, Meta(ge=0, le=PARTITIONS_MAX)] | None = None
    view: Number = 0
    token: Label = ""
    shared: bool = False
    acks: Annotated[int, Meta(ge=0, le=COPIES_MAX)] = 0


class Wish(Struct, frozen=True):
    """The content of a request for a view: the current members, and the lost ones."""

    cluster_id: Id
    member_uuid: Id
    members: Ids
    lost: Ids


class Hello(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="hello"):
    number: Number
    about: About


class View(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="view"):
    number: Number
    about: Wish


class Append(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="append"):
    number: Number
    session: Number
    first: Annotated[int, Meta(ge=1)]
    count: Count


class Metadata(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="metadata"):
    number: Number
    session: Number
    count: Count


class ListKeys(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="keys"):
    """`cursor`: `[listing, page]` of an earlier answer; None begins a listing."""

    number: Number
    map: str
    cursor: tuple[Label, Number] | None
    limit: int


class List(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="list"):
    """The keys of some partitions, with entries."""

    number: Number
    map: str
    cursor: tuple[Label, Number] | None
    limit: int
    partitions: list[int]


class Digests(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="digests"):
    """The digests of some partitions' entries, in this order. `salt`: random, see
    `imap_wal.read.view`."""

    number: Number
    map: str
    salt: Annotated[bytes, Meta(min_length=SALT_BYTES, max_length=SALT_BYTES)]
    partitions: list[int]


class Load(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="load"):
    number: Number
    map: str
    count: Annotated[int, Meta(ge=0, le=LOAD_KEYS_MAX)]


class MapsRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="maps"):
    number: Number
    names: Annotated[list[str], Meta(max_length=NAMES_MAX)]


class Schemas(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="schemas"):
    """`after`: the last id of the previous answer; None: from the start."""

    number: Number
    after: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] | None = None


class Stat(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="stat"):
    number: Number


class Beat(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="beat"):
    """`settling`: how many partitions of the member are not yet compared with the log. `report`: if
    it differs from the last one of this connection."""

    number: Number
    settling: Number = 0
    report: Report | None = None


class Bye(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="bye"):
    number: Number


class Tail(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="tail"):
    """The files on the disk of a node, by the node's folder."""

    number: Number
    node: Path


class TailRead(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="tail-read"):
    """A part of one of these files."""

    number: Number
    path: Path
    offset: Number
    length: Annotated[int, Meta(ge=1, le=TAIL_BYTES_MAX)]


Read: TypeAlias = ListKeys | List | Digests | Load | MapsRequest | Schemas
OfDisk: TypeAlias = Tail | TailRead
Request: TypeAlias = Hello | View | Append | Metadata | Read | Stat | Beat | Bye | OfDisk


class Malformed(Struct, frozen=True):
    """A header that does not have the shape of its request. `kind` is "" and `number` is 0 if they
    cannot be read. `code`: of the error that is the answer."""

    kind: str
    number: int
    text: str
    code: str = "bad-request"


class _AnyHello(Struct, array_like=True, tag="hello"):
    """A hello of any version."""

    number: Number
    about: Raw


class _Versions(Struct):
    protocol: int
    protocol_max: int = 0


_decode, _decode_keys = Decoder(Request).decode, Decoder(list[bytes]).decode
_decode_hello, _decode_versions = Decoder(_AnyHello).decode, Decoder(_Versions).decode
OLDEST, NEWEST = 1, 1
"""The versions of the protocol that this agent speaks."""
_FAULTS = (MsgspecError, RecursionError, UnicodeDecodeError)
"""All errors that msgspec raises for invalid bytes."""


_FIELDS = {str(kind.__struct_config__.tag): kind.__struct_fields__ for kind in get_args(Request)}
_PLACE = re.compile(r"`\$\[(\d+)\][^`]*`")


def kind_of(request: Request | Malformed) -> str:
    """The kind, as in the message; "" if it cannot be read."""
    return (
        request.kind if isinstance(request, Malformed) else str(type(request).__struct_config__.tag)
    )


def read(header: bytes) -> Request | Malformed:
    """The request of a header, or `Malformed`. Never raises."""
    if len(header) > HEADER_BYTES_MAX:
        return Malformed(
            *_front(header),
            f"the header has {len(header)} bytes; at most {HEADER_BYTES_MAX} are allowed",
        )
    try:
        request: Request = _decode(header)
    except _FAULTS as error:
        return _malformed(header, error)
    if isinstance(request, Hello) and not version_of(request.about):
        return _of_other_versions(request.number, request.about)
    return request


def version_of(about: About | _Versions) -> int:
    """The highest version that both speak; 0: there is none."""
    common = min(NEWEST, max(about.protocol, about.protocol_max))
    return common if common >= max(OLDEST, about.protocol) else 0


def _of_other_versions(number: int, about: About | _Versions) -> Malformed:
    theirs = _versions(about.protocol, max(about.protocol, about.protocol_max))
    first = "agent" if about.protocol > NEWEST else "plug-in"
    text = f"this agent speaks protocol {_versions(OLDEST, NEWEST)}, the plug-in {theirs}"
    return Malformed("hello", number, f"{text}: upgrade the {first} first", "unsupported-version")


def _versions(lowest: int, highest: int) -> str:
    return f"{lowest} to {highest}" if highest > lowest else f"{lowest}"


def with_payload(request: Request | Malformed, size: int) -> Request | Malformed:
    """The request, or `Malformed` if a payload of `size` bytes is too large for its kind. Most
    kinds have no payload."""
    match request:
        case Append() | Metadata() | Malformed():
            return request
        case Load():
            text = (
                f"the keys of a load take {size} bytes; several may take at most {LOAD_BYTES_MAX}"
            )
            fits = size <= LOAD_BYTES_MAX or request.count == 1
        case _:
            text, fits = f"{kind_of(request)} has no payload; this one has {size} bytes", not size
    return request if fits else Malformed(kind_of(request), request.number, text)


def keys_of(payload: bytes, count: int) -> list[bytes]:
    """The keys of a `load`. Raises ValueError if the payload is not exactly `count` keys."""
    try:
        return _decode_keys(in_array([payload], count))
    except _FAULTS as error:
        raise ValueError(
            f"the payload is not a stream of {count} keys, each of them bin: {error}"
        ) from error


def _malformed(header: bytes, error: Exception) -> Malformed:
    kind, number = _front(header)
    if kind == "hello":
        try:
            about = _decode_versions(_decode_hello(header).about)
        except _FAULTS:
            about = _Versions(NEWEST)
        if not version_of(about):
            return _of_other_versions(number, about)
    if not kind:
        return Malformed("", 0, "a message has a header [kind, number, ...] and a payload")
    if kind not in _FIELDS:
        return Malformed(kind, number, f"unknown request {kind!r}")
    text = (
        "it is nested too deeply"
        if isinstance(error, RecursionError)
        else _PLACE.sub(lambda place: _named(kind, place), _shortened(str(error)))
    )
    return Malformed(
        kind, number, f"{kind}: {text}; docs/protocol.md has the shape of this request"
    )


def _shortened(text: str) -> str:
    """The end names the place."""
    half = TEXT_MAX // 2
    return text if len(text) <= TEXT_MAX else f"{text[:half]} … {text[-half:]}"


def _named(kind: str, place: re.Match[str]) -> str:
    """A place in a header, as text with the name of its field."""
    fields = ("kind", *_FIELDS[kind])
    index = int(place[1])
    return f"{place[0]} ({fields[index]})" if index < len(fields) else place[0]


def _front(header: bytes) -> tuple[str, int]:
    """Kind and number, even if the rest is not valid; ("", 0) if they cannot be read."""
    unpacker = msgpack.Unpacker(max_buffer_size=_FRONT_BYTES)
    unpacker.feed(header[:_FRONT_BYTES])
    try:
        length, kind, number = unpacker.read_array_header(), unpacker.unpack(), unpacker.unpack()
    except (ValueError, TypeError, msgpack.UnpackException):  # TypeError: a map whose key is a list
        return "", 0
    usable = length >= 2 and type(kind) is str and kind and type(number) is int
    return (kind, number) if usable else ("", 0)
