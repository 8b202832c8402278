"""Manifests: numbered JSON files. The highest number counts, and publishing is the exclusive create
of the next one.

There are two kinds: the cluster's (incarnations, nodes, snapshots), which any process may publish
by compare-and-swap, and a node's (epoch, sessions, archives), which the node's owner and `prune`
publish.

A writer that was paused may find its number free because old manifests were deleted. So after every
create it reads the newest manifest, which names a floor; only manifests below the floor are
deleted. If its number is below the floor, the writer has lost. Otherwise its number was really the
next one, and the newest manifest was built on it.
"""

from __future__ import annotations

import json
import threading
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar

import google_crc32c
import msgspec
from msgspec import Meta

from imap_wal.clock import Clock, Randomness
from imap_wal.errors import CorruptLog, LogError, LostRace, UnsupportedVersion
from imap_wal.version import VERSION
from storage_backends import AlreadyExists, NotFound, SegmentStore, StorageError, StoredFile
from storage_backends.paths import number_in

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
is incomplete: two first uses at the same time crash the process (msgspec 0.22)."""


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
    """Raise KeyError if one of these fields is missing."""
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


def document_of(content: Content, needed: Collection[str], **encoded: Any) -> dict[str, Any]:
    """The fields of a manifest, as JSON: those of the names `needed`, and each other one that does
    not have its default. `encoded`: the fields that are not JSON themselves."""
    defaults = type(content)()
    return {
        name: value
        for name, value in {**fields_of(content), **encoded}.items()
        if name in needed or getattr(content, name) != getattr(defaults, name)
    }


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


def _matches(checksum: object, text: bytes, data: Mapping[str, Any]) -> bool:
    """Whether a manifest has this checksum: `text` is its file, `data` what is in it besides."""
    if checksum == checksum_of_rest(text):
        return True
    # A tenth of the time of `canonical_json`, and the same for all but a few characters.
    with suppress(ValueError):  # half of a surrogate pair
        if checksum == _checksum(msgspec.json.encode(data, order="sorted")):
            return True
    return checksum == _checksum(canonical_json(data))


CLUSTER_FORMAT = 8
"""The format number of a cluster's manifests. No program reads a log without one, so a release that
does not know a new number here refuses the whole log (decision 82 in docs/decisions/files.md)."""
FORMAT = 1
"""That of all other manifests."""
DIGITS = 10
"""In the names of manifests."""
KEEP = 64
"""The number of manifests that are kept, for slow readers and for people."""
READ_ATTEMPTS = 100


def manifest_number(name: str) -> int | None:
    """The number of the manifest with this file name; None for another file."""
    return number_in(name.removesuffix(".json"), DIGITS) if name.endswith(".json") else None


class Content(Protocol):
    format: ClassVar[int]
    """The format number of these manifests."""

    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        """The content of a manifest. Raises ValueError if a field is missing or does not have
        exactly its type. Parts that are parsed later name `file` in their errors."""


C = TypeVar("C", bound=Content)


class ManifestLog(Generic[C]):
    """The manifests of one folder. As thread-safe as its store: it caches only the last manifest
    read, and reads again if the listing shows another file."""

    def __init__(
        self,
        store: SegmentStore,
        folder: str,
        kind: type[C],
        empty: C,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self.folder = f"{folder}/manifest"
        self._store, self._kind, self._empty, self._clock, self._randomness = (
            store,
            kind,
            empty,
            clock,
            randomness,
        )
        self._known: tuple[StoredFile, C] | None = None
        self._floor = 0, 1
        """The number and the floor of the last manifest read or published. They are one value: the
        thread that publishes may be another one than the thread that read last."""
        self._last: tuple[int, C] = 0, empty
        """The last manifest read or published."""
        self._highest = 0
        self.went_back = False
        """Whether the last `read` found only manifests with lower numbers than an earlier `read`
        did: the folder was replaced by an older copy. (A stale listing looks the same.)"""

    def read(self) -> tuple[int, C]:
        """The newest manifest and its number; (0, the empty one) if there is none yet. Raises
        `CorruptLog` if it is damaged, `UnsupportedVersion` if a newer version wrote it, and
        `NotFound` if it is listed but cannot be read."""
        for _ in range(READ_ATTEMPTS):
            files = self._files()
            number = max(files, default=0)
            self.went_back = number < self._highest
            self._highest = max(number, self._highest)
            if not files:
                return 0, self._empty
            cached = self._known
            if cached is not None and cached[0] == files[number]:
                return number, cached[1]
            try:
                document, content = self._decode(number)
            except NotFound:
                continue  # deleted after the listing: there is a newer one
            self._floor = number, document.get("floor", 1)
            self._last = number, content
            if files[number].modified_ms:  # without it, two files of one name look the same
                self._known = files[number], content
            return number, content
        raise NotFound(
            "the newest manifest is listed here, but cannot be read; try again", self.folder
        )

    def read_past_damage(self) -> tuple[int, C, tuple[LogError, ...]]:
        """The same, but manifests that are damaged are left out; their errors, newest first."""
        errors: list[LogError] = []
        with suppress(CorruptLog):
            number, content = self.read()
            self._demand_whole(content)
            return number, content, ()
        for number in sorted(self._files(), reverse=True):
            try:
                content = self._decode(number)[1]
                self._demand_whole(content)
                return number, content, tuple(errors)
            except CorruptLog as error:
                errors.append(error)
            except NotFound:  # a writer deletes the oldest ones
                continue
        return 0, self._empty, tuple(errors)

    def former(self) -> Iterator[C]:
        """The manifests before the newest one that are still there, newest first. Raises
        `CorruptLog` and `UnsupportedVersion`, as `read` does."""
        for number in sorted(self._files(), reverse=True)[1:]:
            with suppress(NotFound):  # a writer deletes the oldest ones
                yield self._decode(number)[1]

    def update(
        self, change: Callable[[C], C | None], attempts: int = 50, *, alone: bool = False
    ) -> C:
        """Publish `change(newest)` as the next manifest. If another writer published first, try
        again with its manifest. `change` may run several times. It returns None (or an equal value)
        to change nothing, and raises to give up. Raises `LostRace` after `attempts`. `alone`: see
        `publish`. Raises the errors of `read` and `publish`, too."""
        for _ in range(attempts):
            number, current = self.read()
            try:
                content = change(current)
                if content is None or (content == current and number > 0):
                    return current
                published = self._publish(number, content, alone)
            except NotFound:  # a list that `current` names, if there is a newer manifest
                if self.read()[0] == number:
                    raise
                continue
            if published is not None:
                return published
        raise LostRace(
            f"{self.folder}: other writers published first {attempts} times in a row; try "
            "again when they are done"
        )

    def publish(self, after: int, content: C, *, alone: bool = False) -> bool:
        """Publish `content` as the successor of manifest `after`. Returns False if there is another
        successor. For a caller that has used only manifest `after`. After a StorageError it is
        unknown whether it was published. `alone`: delete all earlier manifests; a writer that still
        publishes one of their numbers loses. Raises `CorruptLog` and `UnsupportedVersion` for a
        later manifest that cannot be read."""
        return self._publish(after, content, alone) is not None

    def replace_damaged(self, content: C) -> bool:
        """Publish `content` as the successor of a newest manifest that is damaged, and delete all
        earlier ones. False: there is another one meanwhile."""
        newest = max(self._files(), default=0)
        self._last = newest, self._empty  # what `content` follows
        return self.publish(newest, content, alone=True)

    def _prepared(self, number: int, floor: int, content: C) -> C:
        """What manifest `number` says for `content`; what it needs beside it is written now."""
        return content

    def _demand_whole(self, content: C) -> None:
        """Raises `CorruptLog` if a part that is parsed at its first use is damaged."""

    def _finish(self, number: int, content: C) -> None:
        """Manifest `number` was published with this content, as the successor of `_follows`."""

    def _follows(self, number: int) -> C:
        """The content of the manifest before `number`; the empty one if it is not there."""
        last_number, content = self._last
        if last_number == number - 1:
            return content
        try:
            return self._decode(number - 1)[1]
        except NotFound:
            return self._empty

    def _floor_of(self, number: int) -> int:
        """The floor in manifest `number`; 1 if there are no manifests yet."""
        known_number, floor = self._floor
        if known_number == number:
            return floor
        if not number:
            return 1
        try:
            return int(self._decode(number)[0].get("floor", 1))
        except NotFound:
            return number  # deleted: a later manifest is there, so this publication will lose

    def _publish(self, after: int, content: C, alone: bool) -> C | None:
        """`publish`, which returns what was published."""
        number = after + 1
        nonce = self._randomness.token().hex()
        # Never lower than before: otherwise a deleted number would look like the next one.
        floor = number if alone else max(1, number - KEEP, min(self._floor_of(after), number))
        content = self._prepared(number, floor, content)
        body = {
            "format": self._kind.format,
            "number": number,
            "nonce": nonce,
            "created_ms": self._clock.now_ms(),
            "floor": floor,
            **content.to_json(),
        }
        text = with_checksum(body)
        try:
            self._store.create(self._path(number), text)
        except StorageError as error:
            # Our create may have succeeded: its response was lost, or the request was sent twice.
            if not self._is_ours(number, nonce):
                if isinstance(error, AlreadyExists):
                    return None
                raise
        # The create alone is no proof: numbers below the floor are deleted, so a writer that was
        # paused for long could create an old one, and what it did then was lost (decision 22).
        files = self._files()
        while max(files, default=0) != number:
            try:
                # It is higher if this writer was paused. Above the floor, its number was really the
                # next one.
                won = bool(files) and self._decode(max(files))[0]["floor"] <= number
                return content if won else None
            except NotFound:
                files = self._files()  # deleted after the listing: there is a newer one
        if files[number].modified_ms:
            self._known = files[number], content
        self._floor = number, floor
        self._highest = max(number, self._highest)
        for old in list(files):
            if old < floor:
                with suppress(StorageError):  # ours is published; the next publication deletes it
                    self._store.delete(self._path(old))
        self._finish(number, content)
        self._last = number, content
        return content

    def _is_ours(self, number: int, nonce: str) -> bool:
        try:
            return bool(self._decode(number)[0]["nonce"] == nonce)
        except (NotFound, CorruptLog, UnsupportedVersion):
            return False

    def next_path(self, number: int) -> str:
        """The file whose existence shows that manifest `number` is no longer the newest."""
        return self._path(number + 1)

    def _files(self) -> dict[int, StoredFile]:
        files = {}
        for file in self._store.list(self.folder):
            name = file.path.removeprefix(f"{self.folder}/")
            number = manifest_number(name)
            if number is not None:
                files[number] = file
        return files

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:0{DIGITS}d}.json"

    def _decode(self, number: int) -> tuple[dict[str, Any], C]:
        path = self._path(number)
        text = self._store.read(path)
        try:
            data: dict[str, Any] = json.loads(text)
            if not isinstance(data, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise CorruptLog(
                path, 0, f"this manifest is not JSON ({error})", MANIFEST_ADVICE
            ) from error
        checksum = data.pop("checksum", None)
        if not _matches(checksum, text, data):
            raise CorruptLog(path, 0, "this manifest does not match its checksum", MANIFEST_ADVICE)
        with whole(path):
            format = checked(data, _Head).format
        if format != self._kind.format:
            problem = f"manifest format {format}; imap-wal {VERSION} reads {self._kind.format}"
            raise UnsupportedVersion(path, 0, problem, OTHER_FORMAT_ADVICE)
        with whole(path):
            return data, self._kind.from_json(data, path)


class _Head(msgspec.Struct):
    """The fields of every manifest. A marker has a text as its `format`, so it is refused."""

    format: int | str
    number: Whole = 0
    floor: Whole = 1
    nonce: str = ""
