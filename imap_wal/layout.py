"""The paths of all files on storage. Names that users choose are encoded as `imap_wal.names` says.

{namespace}/{cluster}/
    manifest/{number}.json
    snapshot/{map}/{generation}/part-*.parquet, or part-*.wal (`imap_wal.segment.snapshot`)
    snapshot/{map}/_delta_log/              these files as a Delta table (`imap_wal.publish`)
    snapshot/{map}/published/{generation}-* copies without tombstones, for that table
    rewrite.lock                            one rewrite at a time
    claims/manifest/{number}.json
    claims/{incarnation}.claim              the permit of this incarnation's members
    readers/{reader}/manifest/{number}.json how far a reader outside of the cluster has read
    claims/alive/{node}-{epoch}-{number}    this agent hears members of the cluster with the log
    claims/present/{node}-{epoch}-{number}  this agent runs, and hears none of them
    opened/{directory}-{epoch}-{id}         the newest epoch of a log that was opened
    backed-up/{ms}                          when the last whole backup ended, in Unix time
    nodes/{node}/
        manifest/{number}.json
        lists/{number}-{nonce}.json         names of archives
        writer.lock
        wal/{log id}.log                    names the log of these segments
        wal/{epoch}-{nonce}.writer          the permit of this epoch's writer
        wal/{epoch}-{segment}.wal
        wal/{epoch}-{segment}.{by}.wal      its copy, made by the recovery of epoch {by}
        lost/{epoch}/{epoch}-{segment}.wal  put aside by the recovery of an epoch
        lost/{epoch}-{segment}.wal.foreign  put aside by a repair: not of this log
        archive/{map}/{first}-{last}.{epoch}-{nonce}.parquet
        archive/{map}/part-{nonce}.parquet  of a backfill

Beside the namespaces: `imap-wal-restore.txt`, while a backup is restored into this place.

A few names are elsewhere: `wal_dir.json` in `imap_wal.placement.opening`, `clock/` in
`imap_wal.clock`, numbers of manifests in `imap_wal.manifest.store`, names of part files in
`imap_wal.rewrite.plan`.

Arguments: `folder` is the folder of a node, `cluster` the folder of a cluster (its name only in
`cluster_folder` and `Identity`), `node` the name of a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from imap_wal.format import Position, SegmentHeader
from imap_wal.names import check_name, decode, encode, map_component
from storage_backends import StoredFile
from storage_backends.paths import NUMBER_MAX, number_in

_WAL = re.compile(r"(?:^|/)([0-9]{8,})-([0-9]{8,})(?:\.([0-9]{8,}))?\.wal$")
_OPENED = re.compile(r"/opened/([^/]+)-([0-9]{8,})-([0-9a-f]{12})$")
_SIGN = re.compile(r"/claims/(?:alive|present)/([^/]+)-[0-9]{8,}-[0-9]{8,}$")
_CLAIM = re.compile(r"/claims/([0-9]{8,})\.claim$")
_WRITER = re.compile(r"/wal/([0-9]{8,})-[0-9a-f]+\.writer$")
_BACKED_UP = re.compile(r"/backed-up/([0-9]{13})$")
_LOST = re.compile(r"/lost/([0-9]{8,})/")
_LIST = re.compile(r"/lists/([0-9]{10})-[0-9a-f]{1,64}\.json$")
_SNAPSHOT = re.compile(r"[^/]+/[^/]+/snapshot/([^/]+)/([0-9]{8,})/[^/]+\.(?:parquet|wal)")
_ARCHIVE = re.compile(
    r"/([0-9a-z.]+)-([0-9a-z]+(?:\.[0-9a-z]+){3})\.([0-9]{8,})-[0-9a-f]+\.parquet$"
)

_DISPOSABLE = re.compile(
    r"[^/]+/[^/]+/(?:nodes/[^/]+/)?"
    r"(?:wal/[0-9]{8,}-[0-9]{8,}(?:\.[0-9]{8,})?\.wal|archive/[^/]+/[^/]+\.parquet)"
)


def _numbers(matched: re.Match[str] | None, *groups: int) -> list[int] | None:
    """The numbers in these groups of a name (0: there is none); None if imap-wal gives no such
    name."""
    numbers = (
        [] if matched is None else [number_in(matched[group] or f"{0:08d}") for group in groups]
    )
    valid = [number for number in numbers if number is not None]
    return valid if valid and len(valid) == len(groups) else None


def is_disposable(path: str) -> bool:
    """Whether this is the path of a segment, an archive or a file of a snapshot."""
    return snapshot_place(path)[1] > 0 or _DISPOSABLE.fullmatch(path) is not None


def cluster_folder(namespace: str, cluster: str) -> str:
    """The folder of a cluster. Raises the error of `encode`."""
    return f"{encode(namespace)}/{encode(cluster)}"


def node_folder(cluster: str, node: str) -> str:
    """The folder of a node. Raises the error of `encode`."""
    return f"{cluster}/nodes/{encode(node)}"


BACKFILL = "backfill-"
"""How the names of nodes begin that have no writer (`imap_wal.retention.backfill`)."""


_BACKFILL = re.compile(BACKFILL + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_backfill(node: str) -> bool:
    """Whether a node of this name is a backfill: no program writes its log."""
    return _BACKFILL.fullmatch(node) is not None


def cluster_of(node_folder: str) -> str:
    """The folder of the cluster of a node."""
    return node_folder.rpartition("/nodes/")[0]


def is_cluster_manifest(path: str) -> bool:
    """Whether this is a manifest of a cluster: nothing can be read without one."""
    return path.split("/")[2:3] == ["manifest"]


RESTORE_MARKER = "imap-wal-restore.txt"
"""In the root while logs are restored into it, or after a restore that did not end."""

LOCK = "writer.lock"


def lock_path(folder: str) -> str:
    """The path of the lock that the writer of a node's log holds."""
    return f"{folder}/{LOCK}"


def rewrite_lock_path(cluster: str) -> str:
    """The path of the lock that a rewrite holds."""
    return f"{cluster}/rewrite.lock"


def lost_path(folder: str, epoch: int, wal: str) -> str:
    """The path to which the writer of `epoch` moved the segment `wal`."""
    return f"{folder}/lost/{epoch:08d}/{wal.rpartition('/')[2]}"


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a log: namespace, cluster and node."""

    namespace: str
    cluster: str
    node: str

    def check(self) -> None:
        """Raises `InvalidSetting` if a storage could refuse one of the names."""
        check_name(self.namespace, "namespace")
        check_name(self.cluster, "cluster")
        check_name(self.node, "node")

    @property
    def cluster_folder(self) -> str:
        return cluster_folder(self.namespace, self.cluster)

    @property
    def node_folder(self) -> str:
        return node_folder(self.cluster_folder, self.node)


def wal_path(folder: str, epoch: int, segment: int) -> str:
    """The path of a segment."""
    return f"{folder}/wal/{epoch:08d}-{segment:08d}.wal"


def recovered_path(wal: str, by: int) -> str:
    """The path of the copy that the recovery of epoch `by` makes of the segment `wal`, which may be
    such a copy itself. The previous writer does not know this name: what it still appends is in a
    file that is not read."""
    return f"{original_path(wal).removesuffix('.wal')}.{by:08d}.wal"


def original_path(wal: str) -> str:
    """The path of a segment without the epoch of a recovery."""
    return re.sub(r"\.[0-9]{8,}\.wal$", ".wal", wal)


def original_wal_path(header: SegmentHeader) -> str:
    """The original path of the segment with this header."""
    return wal_path(
        Identity(header.namespace, header.cluster, header.node).node_folder,
        header.epoch,
        header.number,
    )


def parse_wal_path(path: str) -> tuple[int, int] | None:
    """(epoch, segment) of a segment's path; None for another file."""
    numbers = _numbers(_WAL.search(path), 1, 2, 3)
    return (numbers[0], numbers[1]) if numbers else None


def recovered_by(path: str) -> int:
    """The epoch whose recovery made this copy of a segment; 0 for an original."""
    numbers = _numbers(_WAL.search(path), 1, 2, 3)
    return numbers[2] if numbers else 0


def without_replaced(names: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """The (epoch, segment) names that count. If a later epoch has the same or a lower segment
    number, a fenced writer created the file: nothing in it was acknowledged."""
    counting: set[tuple[int, int]] = set()
    newest = 0
    for epoch, segment in sorted(names, key=lambda name: (name[1], -name[0])):
        if epoch >= newest:
            counting.add((epoch, segment))
            newest = epoch
    return counting


def log_path(folder: str, log_id: str) -> str:
    """The file that names the log of the segments in this folder. In a `wal_dir` on the disk of
    another machine, the file is missing or names another log."""
    return f"{folder}/wal/{log_id}.log"


def writer_path(folder: str, epoch: int, permit: str) -> str:
    """The permit of the writer of `epoch`: without this file, the writer acknowledges nothing.
    `permit`: a nonce of the open that created it; the node's manifest has it. A delayed open of the
    same epoch creates a file with another name. For storages that cannot append, see `fences`."""
    return f"{folder}/wal/{epoch:08d}-{permit}.writer"


def claim_path(cluster: str, incarnation: int) -> str:
    """The permit of an incarnation: without this file, agents acknowledge nothing for it."""
    return f"{cluster}/claims/{incarnation:08d}.claim"


def parse_claim_path(path: str) -> int | None:
    """The incarnation of a permit, or None for another file."""
    numbers = _numbers(_CLAIM.search(path), 1)
    return numbers[0] if numbers else None


def readers_folder(cluster: str) -> str:
    """The folder with a folder for each reader that prune respects."""
    return f"{cluster}/readers"


def alive_folder(cluster: str) -> str:
    return f"{cluster}/claims/alive"


def alive_path(cluster: str, node: str, epoch: int, number: int) -> str:
    """A sign that a node's agent hears its members; each renewal has a new name. It affects when
    another cluster may claim the log, never which entries count. It contains the time
    (`imap_wal.agent.membership.clocks`). Raises the error of `encode`."""
    return f"{alive_folder(cluster)}/{encode(node)}-{epoch:08d}-{number:08d}"


def present_folder(cluster: str) -> str:
    return f"{cluster}/claims/present"


def present_path(cluster: str, node: str, epoch: int, number: int) -> str:
    """A sign that a node's agent runs and hears no member of the cluster that has the log. The file
    contains the id of its member's cluster too, if one was heard. Renewed and used like
    `alive_path`. Raises the error of `encode`."""
    return f"{present_folder(cluster)}/{encode(node)}-{epoch:08d}-{number:08d}"


def parse_sign_path(path: str) -> str | None:
    """The node of a file in the folders `alive` and `present`, or None for another file."""
    matched = _SIGN.search(path)
    return decode(matched[1]) if matched else None


def backed_up_folder(cluster: str) -> str:
    return f"{cluster}/backed-up"


def backed_up_path(cluster: str, ended_ms: int) -> str:
    """The empty file that records when the last whole backup ended: for people only, so that an
    agent can show its age."""
    return f"{backed_up_folder(cluster)}/{ended_ms:013d}"


def parse_backed_up_path(path: str) -> int:
    """The time of `backed_up_path`; 0 for another file."""
    matched = _BACKED_UP.search(path)
    return int(matched[1]) if matched else 0


def opened_folder(cluster: str) -> str:
    return f"{cluster}/opened"


def opened_path(cluster: str, directory: str, epoch: int, epoch_id: str) -> str:
    """The file that records the newest opened epoch of a log, outside of the node's folder: it does
    not change if that folder is replaced by an older copy, or by another one."""
    return f"{opened_folder(cluster)}/{directory}-{epoch:08d}-{epoch_id}"


def parse_opened_path(path: str) -> tuple[str, int, str] | None:
    """(log directory, epoch, its id) of such a file, or None for another file."""
    matched = _OPENED.search(path)
    epoch = _numbers(matched, 2)
    return (matched[1], epoch[0], matched[3]) if matched and epoch else None


def parse_writer_path(path: str) -> int | None:
    """The epoch of a writer's permit, or None for another file."""
    numbers = _numbers(_WRITER.search(path), 1)
    return numbers[0] if numbers else None


def parse_lost_path(path: str) -> int | None:
    """The epoch whose recovery put this file aside; None for another file."""
    numbers = _numbers(_LOST.search(path), 1)
    return numbers[0] if numbers else None


def is_wal(path: str) -> bool:
    """Whether a file or folder is in the `wal` of a node, or is that folder."""
    parts = path.split("/", 5)
    return len(parts) >= 5 and parts[2] == "nodes" and parts[4] == "wal"


def node_of_wal(path: str) -> str:
    """The folder of the node whose `wal` has this file or folder; "" if none has it."""
    return "/".join(path.split("/", 5)[:4]) if is_wal(path) else ""


def is_on_disk(path: str) -> bool:
    """Whether a file of a node's `wal` is on the node's own disk if it has one: its segments, and
    the file that names their log. Permits are not: other nodes must see and delete them."""
    return is_wal(path) and path.endswith((".wal", ".log"))


def above_wal(folder: str) -> bool:
    """Whether a folder of segments can be below this one."""
    parts = folder.rstrip("/").split("/", 5)
    return len(parts) < 3 or (len(parts) < 5 and parts[2] == "nodes")


FENCE_BYTES_MAX = 4096
"""An empty segment is smaller."""


def fences(files: Iterable[StoredFile], epoch: int) -> set[str]:
    """Paths of fence segments in the epochs before `epoch`; they are never deleted. They exist on
    storages that cannot append. The process that fences a writer creates an empty segment under
    the name that this writer would use next. While that segment exists, a writer that was paused,
    fenced and resumed cannot create it and acknowledge entries that no reader will see. It is the
    last segment of its epoch. (A small last segment of an epoch that ended cleanly is kept too: to
    distinguish them, each would have to be read.)"""
    last: dict[int, tuple[int, StoredFile]] = {}
    for file in files:
        name = parse_wal_path(file.path)
        if name is not None and name[0] < epoch and name[1] > last.get(name[0], (0, file))[0]:
            last[name[0]] = name[1], file
    return {file.path for _, file in last.values() if file.size <= FENCE_BYTES_MAX}


def lists_folder(folder: str) -> str:
    """The folder of a node's list files."""
    return f"{folder}/lists"


def list_path(folder: str, name: str) -> str:
    """The path of a list file; `name`: as manifests have it."""
    return f"{lists_folder(folder)}/{name}.json"


def list_name(number: int, nonce: str) -> str:
    """The name of a list file that manifest `number` is the first to name."""
    return f"{number:010d}-{nonce}"


def list_number(path: str) -> int:
    """The number of that manifest, from the path of a list file; 0 for another file."""
    matched = _LIST.search(path)
    return int(matched[1]) if matched else 0


def list_name_of(path: str) -> str:
    """The name of a list file."""
    return path.rpartition("/")[2].removesuffix(".json")


def archive_path(
    folder: str, map_name: str, first: Position, last: Position, epoch: int, nonce: str
) -> str:
    """The path of a new archive; `nonce` makes it unique. `epoch`: the node's epoch when the
    archive was made."""
    return f"{folder}/archive/{map_component(map_name)}/{first}-{last}.{epoch:08d}-{nonce}.parquet"


def part_path(folder: str, map_name: str, nonce: str) -> str:
    """The path of an archive of a backfill. If no manifest names it, that does not show that a
    newer manifest was lost, as it would for the archive of a log."""
    return f"{folder}/archive/{map_component(map_name)}/part-{nonce}.parquet"


class ArchiveName(NamedTuple):
    """The fields of an archive's name. `epoch`: the node's epoch when it was made."""

    first: Position
    last: Position
    epoch: int


def parse_archive_path(path: str) -> ArchiveName | None:
    """The fields of an archive's path; None for another file."""
    matched = _ARCHIVE.search(path)
    epoch = _numbers(matched, 3)
    if matched is None or epoch is None:
        return None
    try:
        name = ArchiveName(Position.parse(matched[1]), Position.parse(matched[2]), epoch[0])
    except ValueError:
        return None
    return name if max(*name.first[:2], *name.last[:2]) <= NUMBER_MAX else None


def snapshot_place(path: str) -> tuple[str, int]:
    """The map's path component and the generation of a file of a snapshot; ("", 0) for any other
    file, such as those of a published table."""
    matched = _SNAPSHOT.fullmatch(path)
    number = None if matched is None else number_in(matched[2])
    return ("", 0) if matched is None or number is None else (matched[1], number)


def set_aside_folder(cluster: str) -> str:
    """The folder of claims that lost (`imap_wal.rewrite.conflicts`)."""
    return f"{cluster}/set-aside"


def snapshot_folder(cluster: str, map_name: str, generation: int) -> str:
    return f"{cluster}/snapshot/{map_component(map_name)}/{generation:08d}"
