"""Names on storage. Every name that a user chose is percent-encoded, so a map may be called
"../a b". A long name of a map is replaced by a hash in {map}.

{namespace}/{cluster}/
    manifest/{number}.json
    snapshot/{map}/{generation}/part-00000.parquet
    claims/alive/{node}-{epoch}-{number}    this agent hears the members that have the log
    claims/present/{node}-{epoch}-{number}  this agent runs, and hears none of them
    opened/{directory}-{epoch}              the newest epoch of a log that was opened
    nodes/{node}/
        manifest/{number}.json
        writer.lock
        wal/{log id}.log                    says which log these segments belong to
        wal/{epoch}-{nonce}.writer          the permit of this epoch's writer
        wal/{epoch}-{segment}.wal
        wal/{epoch}-{segment}.{by}.wal      its copy, which the recovery of epoch {by} made
        lost/{epoch}/{epoch}-{segment}.wal  what the recovery of an epoch put aside
        archive/{map}/{first}-{last}.{epoch}-{nonce}.parquet
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote, unquote

from imap_wal.errors import InvalidSetting, not_text
from imap_wal.format import Position, SegmentHeader
from storage_backends import StoredFile

_WAL = re.compile(r"(\d{8,})-(\d{8,})(?:\.(\d{8,}))?\.wal$")
_OPENED = re.compile(r"/opened/([^/]+)-(\d{8,})$")
_SIGN = re.compile(r"/claims/(?:alive|present)/([^/]+)-\d{8,}-\d{8,}$")
_CLAIM = re.compile(r"/claims/(\d{8,})\.claim$")
_WRITER = re.compile(r"/wal/(\d{8,})(?:-[0-9a-f]+)?\.writer$")
_ARCHIVE = re.compile(
    r"/([0-9a-z.]+)-([0-9a-z]+(?:\.[0-9a-z]+){3})(?:\.(\d{8,})-[0-9a-f]+)?\.parquet$"
)

_DISPOSABLE = re.compile(
    r"[^/]+/[^/]+/(?:nodes/[^/]+/)?(?:wal/\d{8,}-\d{8,}(?:\.\d{8,})?\.wal|archive/[^/]+/[^/]+\.parquet|snapshot/[^/]+/\d{8,}/[^/]+\.parquet)"
)


def is_disposable(path: str) -> bool:
    """Whether this can be a segment, an archive or a file of a snapshot."""
    return _DISPOSABLE.fullmatch(path) is not None


@lru_cache(10_000)
def encode(name: str) -> str:
    """A name as one path component: everything but letters, digits, `_` and `-` is percent-encoded,
    dots too."""
    if not name:
        raise InvalidSetting("a namespace, cluster, node or map name must not be empty")
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError as error:
        raise InvalidSetting(
            f"the name of a namespace, cluster, node or map: {not_text(error)}"
        ) from error
    return quoted.replace(".", "%2E").replace("~", "%7E")


NAME_BYTES_MAX = 255
"""What file systems allow as one path component."""


def check_name(name: str, what: str) -> None:
    """Raise `InvalidSetting` if the name of a namespace, cluster, node or map cannot be a folder
    name on every storage. Call it where a user gives a name; a longer name that a log already has
    is still read."""
    if type(name) is not str:
        raise InvalidSetting(f"the name of a {what} is {name!r}; it takes text")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidSetting(f"the name of a {what}: {not_text(error)}") from error
    size = len(encode(name))
    if size > NAME_BYTES_MAX:
        raise InvalidSetting(
            f"the name of a {what} takes {size} bytes as a folder, at most {NAME_BYTES_MAX} "
            "are possible; shorten it: letters, digits, _ and - take 1 byte, every other character "
            f"3 or more: {name[:40]!r}…"
        )


MAP_NAME_BYTES_MAX = 1024
MAP_COMPONENT_BYTES_MAX = 200
_PREFIX_BYTES = 120


def check_map_name(name: str) -> None:
    """`check_name` for a map. Its name may be longer, because its folder gets a short one."""
    if type(name) is not str:
        raise InvalidSetting(f"the name of a map is {name!r:.100}; it takes text")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidSetting(f"the name of a map: {not_text(error)}") from error
    if not name:
        raise InvalidSetting("the name of a map is empty; give it one character or more")
    if size > MAP_NAME_BYTES_MAX:
        raise InvalidSetting(
            f"the name of a map takes {size} bytes of UTF-8; at most {MAP_NAME_BYTES_MAX} "
            f"are possible: {name[:40]!r}…"
        )


@lru_cache(10_000)
def map_component(name: str) -> str:
    """A map's name as one path component: encoded. If that takes more than 200 bytes, it is cut,
    followed by `~` and a SHA-256. Then manifests and files have the name, see `map_of`."""
    encoded = encode(name)
    if len(encoded) <= MAP_COMPONENT_BYTES_MAX:
        return encoded
    return f"{encoded[:_PREFIX_BYTES]}~{sha256(name.encode()).hexdigest()}"


def is_hashed(component: str) -> bool:
    """Whether a path component has a hash, and so not the whole name of its map."""
    return "~" in component


def map_of(component: str, known: Iterable[str]) -> str:
    """The map of a path component. For one with a hash, the name among `known` that has this
    component, or "" if none has."""
    if not is_hashed(component):
        return decode(component)
    return next(
        (
            name
            for name in known
            if len(encode(name)) > MAP_COMPONENT_BYTES_MAX and map_component(name) == component
        ),
        "",
    )


@lru_cache(10_000)
def decode(component: str) -> str:
    """The name that a path component encodes."""
    return unquote(component)


def cluster_folder(namespace: str, cluster: str) -> str:
    return f"{encode(namespace)}/{encode(cluster)}"


def node_folder(cluster: str, node: str) -> str:
    """The folder of a node. `cluster` is a cluster folder, `node` a name."""
    return f"{cluster}/nodes/{encode(node)}"


def lost_path(node: str, epoch: int, wal: str) -> str:
    """Where the writer of `epoch` put the segment `wal` aside."""
    return f"{node}/lost/{epoch:08d}/{wal.rpartition('/')[2]}"


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a log: namespace, cluster and node."""

    namespace: str
    cluster: str
    node: str

    def check(self) -> None:
        """Raise `InvalidSetting` if a storage could refuse one of the names."""
        check_name(self.namespace, "namespace")
        check_name(self.cluster, "cluster")
        check_name(self.node, "node")

    @property
    def cluster_folder(self) -> str:
        return cluster_folder(self.namespace, self.cluster)

    @property
    def node_folder(self) -> str:
        return node_folder(self.cluster_folder, self.node)


def wal_path(node: str, epoch: int, segment: int) -> str:
    """The path of a segment. `node` is a node folder."""
    return f"{node}/wal/{epoch:08d}-{segment:08d}.wal"


def recovered_path(wal: str, by: int) -> str:
    """Where the recovery of epoch `by` puts its copy of the segment `wal`, which may be such a copy
    itself. The previous writer does not know this name: what it still appends by name is in a file
    that is not read."""
    return f"{original_path(wal).removesuffix('.wal')}.{by:08d}.wal"


def original_path(wal: str) -> str:
    """The name of a segment without the mark of a recovery."""
    return re.sub(r"\.\d{8,}\.wal$", ".wal", wal)


def home(header: SegmentHeader) -> str:
    """Where the segment with this header belongs, see `original_path`."""
    return wal_path(
        Identity(header.namespace, header.cluster, header.node).node_folder,
        header.epoch,
        header.number,
    )


def parse_wal_path(path: str) -> tuple[int, int] | None:
    """(epoch, segment), or None for a foreign file."""
    found = _WAL.search(path)
    return (int(found[1]), int(found[2])) if found else None


def recovered_by(path: str) -> int:
    """The epoch whose recovery made this copy of a segment; 0 for an original."""
    found = _WAL.search(path)
    return int(found[3] or 0) if found else 0


def without_replaced(names: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """The (epoch, segment) names that count. Where a later epoch has the same segment number or a
    lower one, the file was begun by a writer that had been replaced: nothing in it was
    acknowledged."""
    kept: set[tuple[int, int]] = set()
    newest = 0
    for epoch, segment in sorted(names, key=lambda name: (name[1], -name[0])):
        if epoch >= newest:
            kept.add((epoch, segment))
            newest = epoch
    return kept


def log_path(node: str, log_id: str) -> str:
    """The file that says whose segments are in this folder. A `wal_dir` on another machine's disk
    has none, or another's."""
    return f"{node}/wal/{log_id}.log"


def writer_path(node: str, epoch: int, permit: str) -> str:
    """The permit of the writer of `epoch`: without this file it acknowledges nothing. `permit`: a
    nonce of the open that created it, which the node's manifest names ("" in logs of older
    versions). A late open of the same epoch creates a file with another name. For storages that
    cannot append, see `fences`."""
    return f"{node}/wal/{epoch:08d}{'-' if permit else ''}{permit}.writer"


def claim_path(cluster: str, incarnation: int) -> str:
    """The permit of the Hazelcast cluster that has this incarnation: without this file, agents
    acknowledge nothing for it."""
    return f"{cluster}/claims/{incarnation:08d}.claim"


def parse_claim_path(path: str) -> int | None:
    """The incarnation of such a file, or None."""
    found = _CLAIM.search(path)
    return int(found[1]) if found else None


def alive_folder(cluster: str) -> str:
    return f"{cluster}/claims/alive"


def alive_path(cluster: str, node: str, epoch: int, number: int) -> str:
    """A sign that a node's agent hears its members: each renewal has a new name. It decides when
    another cluster may claim the log, never what counts."""
    return f"{alive_folder(cluster)}/{encode(node)}-{epoch:08d}-{number:08d}"


def present_folder(cluster: str) -> str:
    return f"{cluster}/claims/present"


def present_path(cluster: str, node: str, epoch: int, number: int) -> str:
    """A sign that a node's agent runs, and hears no member of the cluster that has the log. In the
    file: the id of the cluster that its member is in, or nothing. Renewed and used as a file of
    `alive_path`."""
    return f"{present_folder(cluster)}/{encode(node)}-{epoch:08d}-{number:08d}"


def parse_sign_path(path: str) -> str | None:
    """The node of a file in one of these two folders, or None."""
    found = _SIGN.search(path)
    return decode(found[1]) if found else None


def opened_folder(cluster: str) -> str:
    return f"{cluster}/opened"


def opened_path(cluster: str, directory: str, epoch: int) -> str:
    """The file that says outside of a node's folder which epoch of its log was opened: a folder
    that is restored from an older copy does not change this file."""
    return f"{opened_folder(cluster)}/{directory}-{epoch:08d}"


def parse_opened_path(path: str) -> tuple[str, int] | None:
    """(log directory, epoch) of such a file, or None."""
    found = _OPENED.search(path)
    return (found[1], int(found[2])) if found else None


def old_fence_path(node: str, epoch: int) -> str:
    """The file whose existence tells a writer of the first development version that it was
    replaced: it knows no permit."""
    return f"{node}/wal/{epoch:08d}.fenced"


def parse_writer_path(path: str) -> int | None:
    """The epoch of such a file, or None."""
    found = _WRITER.search(path)
    return int(found[1]) if found else None


FENCE_BYTES_MAX = 4096
"""An empty segment is smaller."""


def fences(files: Iterable[StoredFile], epoch: int) -> set[str]:
    """Paths of fence segments in the epochs before `epoch`, which stay permanently. They exist on a
    storage that cannot append. The process that replaces a writer takes the name that this writer
    would create next, with an empty segment. While that segment exists, a writer that was stopped,
    replaced and resumed cannot create it and acknowledge what no reader will see. It is the last
    segment of its epoch. (The last segment of an epoch that ended cleanly stays too if it is as
    small: to distinguish the two would take one request each.)"""
    last: dict[int, tuple[int, StoredFile]] = {}
    for file in files:
        name = parse_wal_path(file.path)
        if name is not None and name[0] < epoch and name[1] > last.get(name[0], (0, file))[0]:
            last[name[0]] = name[1], file
    return {file.path for _, file in last.values() if file.size <= FENCE_BYTES_MAX}


def archive_path(
    node: str, map_name: str, first: Position, last: Position, epoch: int, nonce: str
) -> str:
    """A name that no other run chooses. `epoch`: the node's epoch when the archive was made."""
    return f"{node}/archive/{map_component(map_name)}/{first}-{last}.{epoch:08d}-{nonce}.parquet"


class ArchiveName(NamedTuple):
    """What the name of an archive says. `epoch`: that of the node when it was made; 0 of a name of
    version 1."""

    first: Position
    last: Position
    epoch: int


def parse_archive_path(path: str) -> ArchiveName | None:
    """None for a foreign file."""
    found = _ARCHIVE.search(path)
    try:
        return (
            ArchiveName(Position.parse(found[1]), Position.parse(found[2]), int(found[3] or 0))
            if found
            else None
        )
    except ValueError:
        return None


def snapshot_folder(cluster: str, map_name: str, generation: int) -> str:
    return f"{cluster}/snapshot/{map_component(map_name)}/{generation:08d}"
