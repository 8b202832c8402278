"""Manifests: numbered JSON files; the highest number is the truth, and publishing is the exclusive create of the next one.

Two kinds, one mechanism: the cluster's (incarnations, nodes, snapshots), written by whoever wins the compare-and-swap, and a node's (epoch, sessions,
archives), written by the node's owner and by `prune`.

A writer that slept may find its number free again because old ones were cleaned; so after every create it looks at the newest manifest. Cleaning stays
below a floor that the newest one names: below it, the writer lost; above it, its number was free in its turn, and the newest was built on it.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, overload

import google_crc32c
import msgspec
from msgspec import Meta

from imap_wal import layout
from imap_wal.clock import Clock, Randomness
from imap_wal.entry import TURNS
from imap_wal.errors import CorruptLog, LostRace, UnsupportedVersion
from imap_wal.format import START, Position
from storage_backends import AlreadyExists, NotFound, SegmentStore, StorageError, StoredFile

FORMAT = 1
FORMAT_PACKED = 2
"""Format of a manifest with a packed list: see `ArchiveList` and `SnapshotTable`."""
FORMAT_CLEARS = 3
"""Archives or snapshots may have rows without a key (`imap_wal.clears`)."""
PACKED_FROM = 256
"""A list of this many archives, or of snapshots of this many maps, or more is packed."""
KEEP = 64
"""How many manifests stay for readers that are slow, and for people who look."""
READ_ATTEMPTS = 100
INDENTED_BYTES_MAX = 16 * 1024
MANIFEST_ADVICE = "bring it back from a copy, or write a repaired copy of the log with `imap-wal repair`"


Whole: TypeAlias = Annotated[int, Meta(ge=0)]
V = TypeVar("V")


class Content(Protocol):
    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        """The content of a manifest. ValueError if a field is missing or has not exactly its type.
        Parts that are parsed later name `file` in their errors."""


C = TypeVar("C", bound=Content)


class ManifestLog(Generic[C]):
    """The manifests of one folder. Thread-safe as far as its store is: what it remembers is only
    the manifest it read last, and that is asked for again when the listing shows another file."""

    def __init__(self, store: SegmentStore, folder: str, kind: type[C], empty: C, clock: Clock, randomness: Randomness) -> None:
        self.folder = f"{folder}/manifest"
        self._store, self._kind, self._empty, self._clock, self._randomness = store, kind, empty, clock, randomness
        self._known: tuple[StoredFile, C] | None = None
        self._floor = 1
        """Of the manifest that was read last."""

    def read(self) -> tuple[int, C]:
        """The newest manifest and its number; (0, the empty one) where there is none yet."""
        for _ in range(READ_ATTEMPTS):
            files = self._files()
            if not files:
                return 0, self._empty
            number = max(files)
            known = self._known
            if known is not None and known[0] == files[number]:
                return number, known[1]
            try:
                document, content = self._decode(number)
            except NotFound:
                continue  # cleaned between listing and reading: a newer one is there
            self._floor = document.get("floor", 1)
            if files[number].modified_ms:  # else two files of one name cannot be told apart
                self._known = files[number], content
            return number, content
        raise NotFound("the newest manifest is listed here, but cannot be read; try again", self.folder)

    def update(self, change: Callable[[C], C | None], attempts: int = 50, *, alone: bool = False) -> C:
        """Publish `change(newest)` as the next manifest, again with the newer one whenever another writer was first. `change` may run several times; it returns
        None (or an equal value) to leave things as they are, and raises to give up. `LostRace` after `attempts`. `alone`: see `publish`."""
        for _ in range(attempts):
            number, current = self.read()
            wanted = change(current)
            if wanted is None or (wanted == current and number > 0):
                return current
            if self.publish(number, wanted, alone=alone):
                return wanted
        raise LostRace(f"{self.folder}: other writers published first {attempts} times in a row; try again when they are done")

    def publish(self, after: int, content: C, *, alone: bool = False) -> bool:
        """Publish `content` as the successor of manifest `after`; False when another one has come
        after that. For a caller that acted on manifest `after` and on nothing else. After a
        StorageError it is not known whether it was published. `alone`: delete all former manifests;
        whoever still publishes under one of their numbers loses."""
        number = after + 1
        nonce = self._randomness.token().hex()
        # Never lower than before: else a number that was cleaned would count as free in its turn.
        floor = number if alone else max(1, number - KEEP, min(self._floor, number))
        body = {"format": FORMAT, "number": number, "nonce": nonce, "created_ms": self._clock.now_ms(), "floor": floor, **content.to_json()}
        text = with_checksum(body)
        try:
            self._store.create(self._path(number), text)
        except StorageError as error:
            # Ours is there if our create succeeded and only its answer was lost, or was sent twice.
            if not self._is_ours(number, nonce):
                if isinstance(error, AlreadyExists):
                    return False
                raise
        files = self._files()
        while max(files, default=0) != number:
            try:
                # Above ours if we slept: then the number was free only because it had been cleaned.
                return bool(files) and bool(self._decode(max(files))[0]["floor"] <= number)
            except NotFound:
                files = self._files()  # deleted since it was listed: there is a newer one
        if files[number].modified_ms:
            self._known = files[number], content
        self._floor = floor
        numbers = list(files)
        for old in numbers:
            if old < floor:
                with suppress(StorageError):  # ours is published; the next one cleans up
                    self._store.delete(self._path(old))
        return True

    def _is_ours(self, number: int, nonce: str) -> bool:
        try:
            return bool(self._decode(number)[0]["nonce"] == nonce)
        except (NotFound, CorruptLog, UnsupportedVersion):
            return False

    def next_path(self, number: int) -> str:
        """The file whose existence says that manifest `number` is no longer the newest."""
        return self._path(number + 1)

    def _files(self) -> dict[int, StoredFile]:
        found = {}
        for file in self._store.list(self.folder):
            name = file.path.removeprefix(f"{self.folder}/")
            if name.endswith(".json") and name[:-5].isdigit():
                found[int(name[:-5])] = file
        return found

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:010d}.json"

    def _decode(self, number: int) -> tuple[dict[str, Any], C]:
        path = self._path(number)
        text = self._store.read(path)
        try:
            data: dict[str, Any] = json.loads(text)
            if not isinstance(data, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise CorruptLog(path, 0, f"this manifest is not JSON ({error})", MANIFEST_ADVICE) from error
        checksum = data.pop("checksum", None)
        if checksum != _checksum_of_rest(text) and checksum != _checksum(_canonical(data)):
            raise CorruptLog(path, 0, "this manifest does not match its checksum", MANIFEST_ADVICE)
        known = getattr(self._kind, "formats", (FORMAT,))
        with whole(path):
            format = _checked(data, _Head).format
        if format not in known:
            what = f"manifest format {format}; this imap-wal reads {' and '.join(map(str, known))}"
            raise UnsupportedVersion(path, 0, what, "upgrade imap-wal; the file was not touched")
        with whole(path):
            return data, self._kind.from_json(data, path)


class _Head(msgspec.Struct):
    """What every manifest has. `format` is a text in one that must not be opened."""

    format: int | str = FORMAT
    number: Whole = 0
    floor: Whole = 1
    nonce: str = ""


@contextmanager
def whole(file: str) -> Iterator[None]:
    """`CorruptLog` for errors in the fields of a manifest whose checksum is right."""
    try:
        yield
    except (ValueError, LookupError, TypeError, RecursionError, zlib.error) as error:
        said = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise CorruptLog(file, 0, f"this manifest matches its checksum, but its fields are not what they must be: {said}", MANIFEST_ADVICE) from error


def _checked(data: Any, kind: type[V]) -> V:
    """JSON as a value of this type. ValueError unless every field has exactly its type (a float is
    not an int)."""
    return msgspec.convert(data, kind, str_keys=True)


def _require(data: Mapping[str, Any], *names: str) -> None:
    """KeyError if one of these fields is missing: every version has written them."""
    for name in names:
        data[name]


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass with slots by their names. `asdict` copies each value deeply, and
    a manifest may have thousands."""
    return {name: getattr(value, name) for name in value.__slots__}


def _without_defaults(document: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Without empty fields: a manifest of the first format did not have them."""
    silent = {name for name in names if not document[name]}
    return {name: value for name, value in document.items() if name not in silent}


def _packed(document: Any) -> str:
    """JSON, deflated, in base64."""
    return b64encode(zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)).decode()


def _unpacked(text: str) -> Any:
    return json.loads(zlib.decompress(b64decode(text)))


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _checksum(canonical: bytes) -> str:
    return f"{google_crc32c.value(canonical):08x}"


_BEFORE_REST = len('{"checksum":"01234567",')


def with_checksum(body: Mapping[str, Any]) -> bytes:
    """The canonical JSON, with its checksum as the first field. On several lines for people who
    look, unless it is large: that takes ten times as long."""
    canonical = _canonical(body)
    checksum = _checksum(canonical)
    if len(canonical) < INDENTED_BYTES_MAX:
        return json.dumps({"checksum": checksum, **body}, indent=1).encode()
    return b'{"checksum":"%s",' % checksum.encode() + canonical[1:]


def _checksum_of_rest(text: bytes) -> str:
    """The checksum of a manifest on one line without parsing it."""
    return f"{google_crc32c.extend(google_crc32c.value(b'{'), text[_BEFORE_REST:]):08x}"


# ---- a node's manifest ---------------------------------------------------------------------------------------------

LOG = "log"
SESSIONS_KEPT = 64
"""Sessions whose last request a manifest carries on, beside those of the plug-ins it names."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a cluster's manifest was: its number, the last snapshot generation and the last
    incarnation given."""

    number: Whole = 0
    generation: Whole = 0
    incarnation: Whole = 0

    def __str__(self) -> str:
        return f"manifest {self.number} (generation {self.generation}, incarnation {self.incarnation})"

    def up_to(self, other: Seen) -> Seen:
        """The newer of both, field by field."""
        return Seen(max(self.number, other.number), max(self.generation, other.generation), max(self.incarnation, other.incarnation))

    def newer_than(self, other: Seen) -> bool:
        """Whether this was seen of a cluster that `other` does not know yet."""
        return self.up_to(other) != other


NOTHING_SEEN = Seen()


@dataclass(frozen=True, slots=True)
class Archive:
    """One Parquet file made of sealed segments: the entries of one map from position `first` to `last`."""

    map: str
    path: str
    first: Position
    last: Position
    records: int
    tombstones: int
    bytes: int
    checksum: int = 0
    """CRC-32C of the whole file; 0: not known."""

    def to_json(self) -> dict[str, Any]:
        return _fields(self)


class ArchiveList(Sequence[Archive]):
    """A long list of archives, stored in a manifest as one string: base64 of deflated JSON. An
    open, a new session and a new segment copy it without parsing it, so they take the same time
    with one archive and with ten thousand."""

    __slots__ = ("_archives", "_file", "_text")

    def __init__(self, archives: tuple[Archive, ...] | None, text: str = "", file: str = "") -> None:
        """Give one of the first two; the other is computed on first use: `CorruptLog`, which names
        the manifest `file`. Safe in any thread."""
        self._archives, self._text, self._file = archives, text, file

    @property
    def text(self) -> str:
        if not self._text:
            self._text = _packed([archive.to_json() for archive in self.whole])
        return self._text

    @property
    def whole(self) -> tuple[Archive, ...]:
        if self._archives is None:
            with whole(self._file):
                self._archives = _checked(_unpacked(self._text), tuple[Archive, ...])
        return self._archives

    @overload
    def __getitem__(self, index: int) -> Archive: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Archive, ...]: ...
    def __getitem__(self, index: int | slice) -> Archive | tuple[Archive, ...]:
        return self.whole[index]

    def __len__(self) -> int:
        return len(self.whole)

    def __iter__(self) -> Iterator[Archive]:
        return iter(self.whole)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ArchiveList):
            return self is other or self.whole == other.whole
        return self.whole == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.whole)


@dataclass(frozen=True, slots=True)
class NodeManifest:
    """What the owner of a node's log knows. Which segments exist is told by listing `wal/`, those at or below `archived` apart, whose
    entries are in `archives` and whose files are about to go."""

    formats: ClassVar[tuple[int, ...]] = (FORMAT, FORMAT_PACKED, FORMAT_CLEARS)

    directory: str = ""
    """UUID of this log directory; a new disk under an old node name has another."""
    epoch: Whole = 0
    session: Whole = 0
    """The last session number given."""
    plugins: Mapping[str, Whole] = field(default_factory=dict)
    """Plug-in UUID and incarnation → session, of the last plug-in starts."""
    requests: Mapping[Whole, Whole] = field(default_factory=dict)
    """Session → last durable request, as it stood at `checkpoint`."""
    checkpoint: Position = START
    """Recovery scans from here."""
    clean: bool = True
    """The last writer closed the log; nothing is to be scanned behind `checkpoint`."""
    archived: tuple[Whole, Whole] = (0, 0)
    """(epoch, segment): segments up to this one are archived."""
    archives: Sequence[Archive] = ()
    metadata: tuple[tuple[str | int, ...], ...] = ()
    """Metadata carried over from archived segments: schemas as ("schema", id, hex)."""
    kind: str = ""
    """LOG of a log made by `imap_wal.log.create`; "" of maps' logs."""
    removed: Position = START
    """Entries at or below this may be gone: `prune` or `Log.shrink` removed files that held some. Reading in order is whole only above it."""
    wal_id: str = ""
    """UUID of the folder of segments, which holds a file of this name (`layout.log_path`); "" of a
    log of version 1 until its next open."""
    newest: Whole = 0
    """Number of the newest segment that was in `wal/` when this was published, or is archived. A
    folder without it is incomplete."""
    begins: tuple[Whole, Whole] = (0, 0)
    """(epoch, segment): the first segment of that epoch, published before its writer creates one.
    A segment of an earlier epoch with this number or a higher one was begun by a writer that had
    been replaced, and is void, whether the present epoch has written a segment yet or not. If
    this epoch is lower than `epoch`, the open that claimed `epoch` has not finished."""
    permit: str = ""
    """Nonce in the name of this epoch's permit (`layout.writer_path`)."""
    forgotten: bool = False
    """`imap-wal forget-node` is deleting this log: it cannot be opened again. Without `directory`: it
    has ended, and a new log under the node's name continues after `epoch` and `archived`."""
    embedded: bool = False
    """The last open was that of a program, not of an agent: a cluster of Hazelcast members that
    claims this log shuts the program out."""
    former: Mapping[Whole, int] = field(default_factory=dict)
    """Session of a plug-in in an older incarnation → its last request that counts."""
    cluster: Seen = NOTHING_SEEN
    """The newest cluster manifest that the publisher of this one had seen or acted on. An older one
    must not be used beside it."""
    clears: bool = False
    """An archive has, or had, clears."""

    def __post_init__(self) -> None:
        if isinstance(self.archives, tuple) and len(self.archives) >= PACKED_FROM:
            object.__setattr__(self, "archives", ArchiveList(self.archives))

    def lives_in(self, logs: Collection[str]) -> bool:
        """Whether a `wal/` folder of these logs is this log's; see `segments.WalFolder.logs`. A log
        of version 1 has no id to tell."""
        return not self.wal_id or self.wal_id in logs

    @property
    def empty(self) -> bool:
        """No log is here: none ever was, or the last one was forgotten."""
        return not self.directory and not self.kind

    def known_requests(self, requests: Mapping[int, int]) -> dict[int, int]:
        """Those of sessions that can still send something again: of the last plug-in starts, and of
        the last writers."""
        known = set(self.plugins.values())
        return {session: request for session, request in requests.items() if session in known or session > self.session - SESSIONS_KEPT}

    def to_json(self) -> dict[str, Any]:
        document = _fields(self)
        if isinstance(self.archives, ArchiveList):
            document |= {"format": FORMAT_PACKED, "archives": self.archives.text}
        else:
            document["archives"] = [archive.to_json() for archive in self.archives]
        if self.clears:
            document["format"] = FORMAT_CLEARS
        document["cluster"] = _fields(self.cluster)
        for name in ("requests", "former"):
            document[name] = {str(session): request for session, request in document[name].items()}
        for name in _NOT_OF_VERSION_1:
            if getattr(self, name) == getattr(_NO_NODE, name):
                del document[name]
        return document

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        _require(data, "directory", "epoch", "session", "plugins", "requests", "checkpoint", "clean", "archived", "archives", "metadata")
        archives = data["archives"]
        packed = isinstance(archives, str)
        # The list is a tuple in memory.
        given = ArchiveList(None, archives, file) if packed else _checked(archives, tuple[Archive, ...])
        found = replace(_checked({**data, "archives": ()}, cls), archives=given)
        for item in found.metadata:
            match item:
                case ["schema", int(), str(content)]:
                    bytes.fromhex(content)
                case [str(name), *_] if name != "schema":
                    pass
                case _:
                    raise ValueError("an item of metadata has another shape than its type")
        return found


_NO_NODE = NodeManifest()
_NOT_OF_VERSION_1 = ("kind", "removed", "wal_id", "newest", "begins", "permit", "forgotten", "embedded", "former", "cluster", "clears")
"""Written only when they are set."""


# ---- the cluster's manifest ----------------------------------------------------------------------------------------

Pair: TypeAlias = tuple[int, int]
"""(incarnation, partition version): the front of an entry's order."""


def without_turn(pair: Pair) -> Pair:
    """The pair of the version alone. A transaction has its turn from the partition's owner, and
    another member logs it: so the owner's later turns may be in the logs before it."""
    incarnation, version = pair
    return incarnation, version - version % TURNS if version >= TURNS else version


@dataclass(frozen=True, slots=True)
class PartitionVersions:
    """Partition → the highest pair that was in the logs at some moment. An owner that holds a lower
    pair was replaced before that moment, and acknowledges nothing any more."""

    pairs: Mapping[int, Pair] = field(default_factory=dict)

    def encode(self) -> str:
        """Runs of partitions with one pair, as `first+count:incarnation.version`, with commas."""
        runs: list[tuple[int, int, Pair]] = []
        for partition, pair in sorted(self.pairs.items()):
            if runs and runs[-1][0] + runs[-1][1] == partition and runs[-1][2] == pair:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1, pair)
            else:
                runs.append((partition, 1, pair))
        return ",".join(f"{first}+{count}:{pair[0]}.{pair[1]}" for first, count, pair in runs)

    @classmethod
    def decode(cls, text: str) -> Self:
        pairs: dict[int, Pair] = {}
        for run in filter(None, text.split(",")):
            partitions, _, pair = run.partition(":")
            first, count = map(int, partitions.split("+"))
            incarnation, version = map(int, pair.split("."))
            pairs |= dict.fromkeys(range(first, first + count), (incarnation, version))
        return cls(pairs)

    def raised(self, pairs: Iterable[tuple[int, Pair]]) -> Self:
        """With these pairs, without turns, where they are higher."""
        found = dict(self.pairs)
        for partition, given in pairs:
            pair = without_turn(given)
            if found.get(partition, ()) < pair:
                found[partition] = pair
        return replace(self, pairs=found)


NO_VERSIONS = PartitionVersions()


@dataclass(frozen=True, slots=True)
class Mark:
    """Low-water mark: of the log directory `directory`, positions at or below `position` are covered by a snapshot."""

    directory: str
    position: Position


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a rewrite published for one map: `files` hold the newest change of every key up to `marks`. A map that was dropped has no files."""

    generation: Whole
    files: tuple[str, ...]
    marks: Mapping[str, Mark]
    live: int
    tombstones: int
    bytes: int
    created_ms: int
    dropped: int = 0
    """Generation of the last drop of this map; a reader that merged before it must forget what it merged."""
    checksums: tuple[int, ...] = ()
    """CRC-32C of each whole file; empty: not known."""
    until_ms: int = 0
    """How the map stood at earlier times than this (Unix time) is no longer known: older changes of its keys are gone."""
    sizes: tuple[int, ...] = ()
    """Bytes of each file; empty: not known."""
    rows: tuple[int, ...] = ()
    """How many rows each file has; empty: not known."""
    versions: Whole = 0
    """The table in `ClusterManifest.versions` that holds above `marks`; 0: none."""
    last_expiry_ms: int = 0
    """When the last row expires; 0: some row never does, or it is not known."""

    def to_json(self, shared: str | None = None) -> dict[str, Any]:
        """`shared`: the number of its marks, where several snapshots have the same."""
        document = {**_fields(self), "marks": shared or _marks_json(self.marks)}
        return _without_defaults(document, ("sizes", "rows", "versions", "last_expiry_ms"))

    @classmethod
    def from_json(cls, data: dict[str, Any], shared: Mapping[str, Mapping[str, Mark]] | None = None) -> Self:
        """`shared`: marks that several snapshots have, by their number."""
        given = data["marks"]
        marks = (shared or {})[given] if isinstance(given, str) else _checked(given, dict[str, Mark])
        return replace(_checked({**data, "marks": {}}, cls), marks=marks)


def _marks_json(marks: Mapping[str, Mark]) -> dict[str, Any]:
    return {node: _fields(mark) for node, mark in marks.items()}


def _with_marks_once(snapshots: Mapping[str, Snapshot]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Snapshots as JSON, and the marks that several of them share, once: 1,000 maps in the logs of
    100 nodes have 100,000 marks, and one rewrite of all maps makes 100 distinct ones."""
    # Those that one manifest or one rewrite gave are mostly one object: compared by content once.
    distinct = {id(snapshot.marks): snapshot.marks for snapshot in snapshots.values()}
    content = {each: tuple(sorted(marks.items(), key=lambda item: item[0])) for each, marks in distinct.items()}
    same: dict[tuple[Any, ...], int] = {}
    first = {each: same.setdefault(key, each) for each, key in content.items()}
    users = Counter(first[id(snapshot.marks)] for snapshot in snapshots.values())
    numbers = {each: str(number) for number, each in enumerate((each for each, count in users.items() if count > 1), 1)}
    found = {}
    for name, snapshot in snapshots.items():
        number = numbers.get(first[id(snapshot.marks)])
        found[name] = snapshot.to_json(number)
    return found, {number: _marks_json(distinct[each]) for each, number in numbers.items()}


def _from_json_with_marks(snapshots: Any, marks: Any) -> dict[str, Snapshot]:
    """What `_with_marks_once` gave. ValueError, KeyError."""
    shared = _checked(marks, dict[str, dict[str, Mark]])
    return {name: Snapshot.from_json(snapshot, shared) for name, snapshot in _checked(snapshots, dict[str, dict[str, Any]]).items()}


def _covered(snapshots: Mapping[str, Snapshot]) -> dict[str, tuple[Mark, ...]]:
    """Node → for each log directory that it had, the farthest mark of any snapshot."""
    farthest: dict[tuple[str, str], Position] = {}
    for marks in {id(snapshot.marks): snapshot.marks for snapshot in snapshots.values()}.values():
        for node, mark in marks.items():
            log = (node, mark.directory)
            farthest[log] = max(mark.position, farthest.get(log, START))
    found: dict[str, tuple[Mark, ...]] = {}
    for (node, directory), position in farthest.items():
        found[node] = (*found.get(node, ()), Mark(directory, position))
    return found


class SnapshotTable(Mapping[str, Snapshot]):
    """The snapshots of many maps, stored in a manifest as one string, as `ArchiveList` is: an open
    and a claim copy it without parsing it. What they need of it is beside it, in `covered`."""

    __slots__ = ("_covered", "_file", "_snapshots", "_text")

    def __init__(
        self, snapshots: Mapping[str, Snapshot] | None, text: str = "", covered: Mapping[str, tuple[Mark, ...]] | None = None, file: str = ""
    ) -> None:
        """Give the first, or the other three; what is not given is computed on first use:
        `CorruptLog`, which names the manifest `file`. Safe in any thread."""
        self._snapshots, self._text, self._covered, self._file = snapshots, text, covered, file

    @property
    def text(self) -> str:
        if not self._text:
            self._text = _packed(_with_marks_once(self.whole))
        return self._text

    @property
    def whole(self) -> Mapping[str, Snapshot]:
        if self._snapshots is None:
            with whole(self._file):
                self._snapshots = _from_json_with_marks(*_checked(_unpacked(self._text), tuple[Any, Any]))
        return self._snapshots

    @property
    def covered(self) -> Mapping[str, tuple[Mark, ...]]:
        """Node → for each log directory that it had, the farthest mark of any snapshot."""
        if self._covered is None:
            self._covered = _covered(self.whole)
        return self._covered

    def __getitem__(self, name: str) -> Snapshot:
        return self.whole[name]

    def __len__(self) -> int:
        return len(self.whole)

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SnapshotTable):
            return self is other or self.whole == other.whole
        return self.whole == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.whole)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One lifetime of a Hazelcast cluster: its id, its incarnation, and where each node's log ended before it. What an older
    incarnation appended behind its cut is void."""

    cluster_id: str
    incarnation: Whole
    cuts: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class ClusterManifest:
    """What all nodes of a cluster share."""

    formats: ClassVar[tuple[int, ...]] = (FORMAT, FORMAT_PACKED, FORMAT_CLEARS)

    incarnation: Whole = 0
    """The last incarnation given, to a cluster lifetime or an embedded open."""
    claims: Mapping[str, Whole] = field(default_factory=dict)
    """Of a log of version 1; today they have a manifest of their own, see `ClaimManifest`."""
    lifetimes: tuple[Lifetime, ...] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Node name → UUID of its log directory: every node that ever wrote and was not forgotten."""
    snapshots: Mapping[str, Snapshot] = field(default_factory=dict)
    """By map name."""
    generation: Whole = 0
    """The last snapshot generation given."""
    orphan_floor: Whole = 0
    """No snapshot of a generation below this is published any more; its files may be deleted."""
    versions: Mapping[int, PartitionVersions] = field(default_factory=dict)
    """Generation of the rewrite that made it → table. Above the marks of a snapshot that names a
    table, an entry of a lower pair was never acknowledged: it is void."""
    forgotten: tuple[str, ...] = ()
    """Log directories of nodes that were forgotten: they are not taken in again."""
    embedded: Whole = 0
    """The last incarnation given to an embedded open."""
    clears: bool = False
    """A snapshot has, or had, clears."""

    def __post_init__(self) -> None:
        if not isinstance(self.snapshots, SnapshotTable) and len(self.snapshots) >= PACKED_FROM:
            object.__setattr__(self, "snapshots", SnapshotTable(self.snapshots))

    def to_json(self) -> dict[str, Any]:
        versions = {str(number): table.encode() for number, table in self.versions.items()}
        document = {
            **_fields(self),
            "lifetimes": [_fields(lifetime) for lifetime in self.lifetimes],
            "versions": versions,
        }
        if isinstance(self.snapshots, SnapshotTable):
            covered = {node: [_fields(mark) for mark in marks] for node, marks in self.snapshots.covered.items()}
            document |= {"format": FORMAT_PACKED, "snapshots": self.snapshots.text, "covered": covered, "marks": {}}
        else:
            document["snapshots"], document["marks"] = _with_marks_once(self.snapshots)
        if self.clears:
            document["format"] = FORMAT_CLEARS
        return _without_defaults(document, ("marks", "orphan_floor", "versions", "forgotten", "embedded", "clears"))

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        _require(data, "incarnation", "claims", "lifetimes", "nodes", "snapshots", "generation")
        snapshots: Mapping[str, Snapshot]
        if isinstance(data["snapshots"], str):
            snapshots = SnapshotTable(None, data["snapshots"], _checked(data["covered"], dict[str, tuple[Mark, ...]]), file)
        else:
            snapshots = _from_json_with_marks(data["snapshots"], data.get("marks", {}))
        versions = {number: PartitionVersions.decode(text) for number, text in _checked(data.get("versions", {}), dict[int, str]).items()}
        return replace(_checked({**data, "snapshots": {}, "versions": {}}, cls), snapshots=snapshots, versions=versions)

    def covered(self, node: str) -> tuple[Mark, ...]:
        """For each log directory that the node had, the farthest mark of any snapshot."""
        table = self.snapshots
        return (table.covered if isinstance(table, SnapshotTable) else _covered(table)).get(node, ())

    def seen(self, number: int) -> Seen:
        """What a reader of this as manifest `number` has seen."""
        return Seen(number, self.generation, self.incarnation)

    def versions_of(self, name: str) -> PartitionVersions:
        """The table that holds for a map above the marks of its snapshot; empty where none does."""
        snapshot = self.snapshots.get(name)
        return self.versions.get(snapshot.versions, NO_VERSIONS) if snapshot else NO_VERSIONS

    def with_snapshot(self, name: str, snapshot: Snapshot) -> ClusterManifest:
        return replace(self, snapshots={**self.snapshots, name: snapshot}, generation=max(self.generation, snapshot.generation))

    def without_unused_tables(self) -> ClusterManifest:
        """Without tables of partitions that no snapshot names."""
        used = {snapshot.versions for snapshot in self.snapshots.values()}
        return replace(self, versions={number: table for number, table in self.versions.items() if number in used})


CLAIMS_KEPT = 1000
"""Clusters that are remembered as followed by another one."""


@dataclass(frozen=True, slots=True)
class ClaimManifest:
    """Which Hazelcast cluster may write. It is checked between every sync and acknowledgement, so
    it has a small manifest of its own. `claims`: cluster id → incarnation claimed for it. Once a
    newer incarnation is here, agents acknowledge nothing for an older one. The cuts are read and
    the lifetime is published after that, so no acknowledged change is above a cut.

    The newest claim may be a view: then `members` are those that may write in it. The list is
    always complete: a member that comes later is entered before its first change."""

    claims: Mapping[str, Whole] = field(default_factory=dict)
    permits: Whole = 0
    """Claims from this incarnation on have a permit (`layout.claim_path`); 0: none has."""
    members: tuple[str, ...] = ()
    """UUIDs of the Hazelcast members of the newest claim; (): any member of its cluster."""
    lost: tuple[str, ...] = ()
    """Members that were lost before the newest claim, or before their first hello. They may not write
    in it."""
    forced: bool = False
    """The newest claim is an operator's (`imap-wal claim --force`). The next cluster waits for no
    node."""
    tokens: tuple[str, ...] = ()
    """SHA-256 of each token of this cluster. Agents claim only for who has one of them; (): for all
    who may connect."""

    @property
    def newest(self) -> int:
        """The last incarnation claimed; 0 where no cluster ever did."""
        return max(self.claims.values(), default=0)

    @property
    def cluster_id(self) -> str:
        """Of the newest claim; "" if there is none."""
        return max(self.claims, key=lambda each: self.claims[each], default="")

    def with_claim(self, cluster_id: str, incarnation: int, members: tuple[str, ...] = (), lost: tuple[str, ...] = ()) -> ClaimManifest:
        kept = sorted({**self.claims, cluster_id: incarnation}.items(), key=lambda claim: claim[1])[-CLAIMS_KEPT:]
        return ClaimManifest(dict(kept), self.permits or incarnation, members, lost, tokens=self.tokens)

    def admits(self, member: str, view: int) -> bool:
        """Whether this member of the newest claim's cluster may write, if its hello names this view."""
        return not self.members or member in self.members or (view == self.newest and member not in self.lost)

    def with_member(self, member: str) -> ClaimManifest:
        """The same with this member in the list."""
        return self if not self.members or member in self.members else replace(self, members=(*self.members, member))

    def barring(self, lost: Collection[str]) -> ClaimManifest:
        """The same with further lost members, none of which is in the list."""
        return replace(self, lost=tuple(sorted({*self.lost, *lost})))

    @property
    def permitted(self) -> bool:
        """Whether the newest claim has a permit."""
        return 0 < self.permits <= self.newest

    def to_json(self) -> dict[str, Any]:
        return _without_defaults(_fields(self), ("permits", "members", "lost", "forced", "tokens"))

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        _require(data, "claims")
        return _checked(data, cls)


def claim_manifests(
    store: SegmentStore, cluster_folder: str, former: Mapping[str, int], clock: Clock, randomness: Randomness
) -> ManifestLog[ClaimManifest]:
    """`former`: the claims that the cluster's own manifest has, of a log of version 1."""
    return ManifestLog(store, f"{cluster_folder}/claims", ClaimManifest, ClaimManifest(former), clock, randomness)


def cluster_manifests(store: SegmentStore, cluster_folder: str, clock: Clock, randomness: Randomness) -> ManifestLog[ClusterManifest]:
    return ManifestLog(store, cluster_folder, ClusterManifest, ClusterManifest(), clock, randomness)


def node_manifests(store: SegmentStore, node_folder: str, clock: Clock, randomness: Randomness) -> ManifestLog[NodeManifest]:
    return ManifestLog(store, node_folder, NodeManifest, NodeManifest(), clock, randomness)


# ---- manifests and what is beside them --------------------------------------------------------------------------------

MISSING_ADVICE = "bring the log back, or continue without what only it holds: recovery_policy='partial'"


def foreign_wal(folder: str, manifest: NodeManifest, found: Collection[str]) -> str:
    """The error text where the segments beside a node's manifest are not those it names."""
    there = f"those of {', '.join(sorted(found))}" if found else f"no file {manifest.wal_id}.log"
    return (
        f"{folder}/wal should hold the segments of log {manifest.wal_id}, but has {there}: its disk is not mounted here or was "
        "replaced, or wal_dir is on another machine"
    )


def older_manifest(path: str, evidence: str) -> CorruptLog:
    """The error for a manifest that was put back from an older copy."""
    what = f"the manifests here are older than the files beside them ({evidence})"
    advice = "bring the newer manifests back from a copy, or write a repaired copy of the log with `imap-wal repair`"
    return CorruptLog(path, 0, what, advice)


def mark_beyond(node: str, manifest: NodeManifest, last: tuple[int, int], cluster: ClusterManifest) -> str:
    """The error text where a snapshot covers positions after `last`, the last segment of a node's
    log: the node's folder was put back from an older copy, and later entries would be taken for
    covered. "" where no snapshot does."""
    end = max(last, manifest.archived)
    for mark in cluster.covered(node):
        if mark.directory == manifest.directory and mark.position[:2] > end:
            return f"a snapshot covers node {node!r} up to {mark.position}, its log ends with segment {end[0]}-{end[1]}"
    return ""


def opened_epochs(store: SegmentStore, cluster_folder: str) -> dict[str, int]:
    """Log directory → the newest epoch that was opened, by `layout.opened_path`."""
    found: dict[str, int] = {}
    for file in store.list(layout.opened_folder(cluster_folder)):
        name = layout.parse_opened_path(file.path)
        if name is not None:
            found[name[0]] = max(name[1], found.get(name[0], 0))
    return found


def older_epoch(manifest: NodeManifest, opened: Mapping[str, int]) -> str:
    """Why this manifest of a node was put back from an older copy; "" where no later open is
    known."""
    epoch = opened.get(manifest.directory, 0)
    return f"epoch {epoch} of this log was opened, the node's manifest knows {manifest.epoch}" if epoch > manifest.epoch else ""


def current_cluster(
    store: SegmentStore, cluster_folder: str, clusters: ManifestLog[ClusterManifest], clock: Clock, randomness: Randomness
) -> ClusterManifest:
    """The cluster's manifest. `CorruptLog` where a node has seen a newer one: this manifest was put
    back from an older copy, and would give generations and incarnations a second time."""
    nodes = {}
    for folder in store.folders(f"{cluster_folder}/nodes"):  # read before the cluster's, which is then at least as new as what they have seen
        nodes[folder] = node_manifests(store, f"{cluster_folder}/nodes/{folder}", clock, randomness).read()[1].cluster
    number, cluster = clusters.read()
    if not number and store.folders(f"{cluster_folder}/snapshot"):
        # Another process may have begun this cluster, and rewritten it, since the first look.
        number, cluster = clusters.read()
        if not number:
            raise older_manifest(clusters.folder, "there are snapshots, and no manifest")
    for folder in nodes if not number else ():
        # Segments are listed first: each is begun after a manifest of its node was published.
        path = f"{cluster_folder}/nodes/{folder}"
        segments = any(layout.parse_wal_path(file.path) for file in store.list(f"{path}/wal"))
        if segments and not node_manifests(store, path, clock, randomness).read()[0]:
            raise older_manifest(f"{path}/manifest", f"there are segments in {path}/wal, and no manifest")
    for folder, seen in nodes.items():
        if seen.newer_than(cluster.seen(number)):
            raise older_manifest(clusters.folder, f"node folder {folder} has seen {seen}, here is {cluster.seen(number)}")
    return cluster
