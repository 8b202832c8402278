"""A node's manifest: epoch, sessions, archives. Written by the node's owner and by `prune`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from imap_wal.context import Context
from imap_wal.entry import SHARED_SESSIONS, TURNS, Pair
from imap_wal.format import START, Position
from imap_wal.manifest.epochs import Epoch
from imap_wal.manifest.list_files import (
    Archive,
    ArchiveLists,
    Listed,
    dropped_names,
    ending_by,
    parsed_lists,
    with_changes,
)
from imap_wal.manifest.store import (
    FORMAT,
    ManifestLog,
    Whole,
    checked,
    document_of,
    fields_of,
    require,
)
from imap_wal.segment.listing import WalFolder

LOG = "log"
UNKNOWN = -1
"""Instead of the number of the last request that counts: files with the later entries may have been
removed, or were lost with a disk."""
SESSIONS_KEPT = 64
"""The number of sessions whose last request the manifest keeps, besides those of the plug-ins that
it names."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The progress of a cluster's manifest: its number, the last snapshot generation and the last
    assigned incarnation."""

    number: Whole = 0
    generation: Whole = 0
    incarnation: Whole = 0

    def __str__(self) -> str:
        return (
            f"manifest {self.number} (generation {self.generation}, incarnation {self.incarnation})"
        )

    def up_to(self, other: Seen) -> Seen:
        """The newer values of both, field by field."""
        return Seen(
            max(self.number, other.number),
            max(self.generation, other.generation),
            max(self.incarnation, other.incarnation),
        )

    def newer_than(self, other: Seen) -> bool:
        """Whether this is newer than `other` in any field."""
        return self.up_to(other) != other


NOTHING_SEEN = Seen()


@dataclass(frozen=True, slots=True)
class NodeManifest:
    """The state of a node's log. The segments are found by listing `wal/`, except those up to
    `archived`: their entries are in `archives`, and their files will be deleted."""

    format: ClassVar[int] = FORMAT
    needed: ClassVar[tuple[str, ...]] = (
        "directory",
        "epoch",
        "session",
        "plugins",
        "requests",
        "checkpoint",
        "clean",
        "archived",
        "archives",
        "metadata",
    )
    """As of `ClaimManifest`."""

    directory: str = ""
    """UUID of this log directory; a new disk under an old node name has another one."""
    epoch: Whole = 0
    session: Whole = 0
    """The last assigned session number."""
    plugins: Mapping[str, Whole] = field(default_factory=dict)
    """Plug-in UUID and incarnation → session, for the last plug-in starts."""
    requests: Mapping[Whole, Whole] = field(default_factory=dict)
    """Session → last durable request at `checkpoint`."""
    checkpoint: Position = START
    """Recovery scans from here."""
    clean: bool = True
    """The last writer closed the log. An open does not scan anything after `checkpoint`."""
    archived: tuple[Whole, Whole] = (0, 0)
    """(epoch, segment): segments up to this one are archived."""
    archives: Listed[Archive] = field(default_factory=Listed)
    metadata: tuple[tuple[str | int, ...], ...] = ()
    """Metadata from archived segments. Schemas are ("schema", id, hex)."""
    kind: str = ""
    """LOG for a log of `imap_wal.log.create`; "" for logs of maps."""
    removed: Position = START
    """Entries up to this position may be removed, by `prune` or `Log.shrink`. A read in log order
    is complete only above it."""
    wal_id: str = ""
    """UUID of the folder of segments, in which a file has this name (`layout.log_path`); "": the
    next open makes a new one."""
    newest: Whole = 0
    """Number of the newest segment that was in `wal/` when this was published, or is archived. A
    folder without it is incomplete."""
    begins: tuple[Whole, Whole] = (0, 0)
    """(epoch, segment): the first segment of that epoch, published before its writer creates one. A
    segment of an earlier epoch with this number or a higher one was begun by a replaced writer and
    is void, even if the current epoch has not written a segment yet. If this epoch is lower than
    `epoch`, the open that claimed `epoch` has not finished."""
    permit: str = ""
    """Nonce in the name of this epoch's permit (`layout.writer_path`)."""
    forgotten: bool = False
    """`imap-wal forget-node` is deleting this log: it cannot be opened again. Without `directory`
    it has finished, and a new log under the node's name continues after `epoch` and `archived`."""
    embedded: bool = False
    """The last open was a program's, not an agent's: a cluster of Hazelcast members that claims
    this log fences the program."""
    former: Mapping[Whole, int] = field(default_factory=dict)
    """Session of a plug-in that has ended → its last request that counts, or `UNKNOWN`. A session
    ends with its incarnation, and when the log loses entries (`with_sessions_ended`)."""
    cluster: Seen = NOTHING_SEEN
    """The newest cluster manifest that the publisher of this one had seen or acted on. An older one
    must not be used with it."""
    address: str = ""
    """Where the agent serves the segments on its own disk to others; "": all nodes can see the
    segments."""
    address_key: str = ""
    """The public key of the agent there; "": it has none."""
    given_up: tuple[Whole, Whole, Whole] = (0, 0, 0)
    """(epoch, first, last): the numbers of the segments that were lost with a disk, when an open
    continued without them. They are empty segments of this epoch."""
    copied: tuple[Whole, Whole, Whole] = (0, 0, 0)
    """(acks, segment, losses): each acknowledged change in this segment and later ones was
    acknowledged by this many logs, in sessions that began after this many losses of the other nodes
    (`ClusterManifest.losses`). Only with an `address`; zeros: unknown."""
    epochs: tuple[Epoch, ...] = ()
    """The last epochs that have entries, and the present one, see `imap_wal.manifest.epochs`."""

    dropped: Mapping[str, Whole] = field(default_factory=dict, compare=False)
    """Name of a list of archives that former manifests have → number of the first manifest without
    it. Set by the publication."""

    def with_archives(
        self, added: Iterable[Archive], gone: Collection[Archive] = ()
    ) -> NodeManifest:
        """The manifest with more archives, and without those of the paths in `gone`. Raises the
        errors of `Listed`."""
        return replace(self, archives=with_changes(self.archives, added, gone))

    def archives_ending_by(self, upto: Position) -> Iterator[Archive]:
        """The archives whose last entry is at or below a position; errors as `with_archives`."""
        return ending_by(self.archives, upto)

    def lives_in(self, logs: Collection[str]) -> bool:
        """Whether a `wal/` folder with the segments of these logs belongs to this log; see
        `WalFolder.logs` in `imap_wal.segment.listing`. Without `wal_id`, every folder
        does: the next open makes the file."""
        return not self.wal_id or self.wal_id in logs

    def unseen(self, wal: WalFolder) -> range:
        """The numbers of the segments that are missing at the end of a listing. With an `address`,
        they are on the node's own disk."""
        following = self.archived[1] + 1
        for segment in wal.segments:
            following += segment.number == following
        return range(following, max(self.newest, self.checkpoint.segment) + 1)

    def is_whole(self, wal: WalFolder) -> bool:
        """Whether a listing has the whole log: the node's disk was read, or all its segments were
        uploaded. The manifest names each segment before an entry in it counts."""
        uploaded = bool(self.address) and not wal.logs and not self.unseen(wal)
        return uploaded or self.lives_in(wal.logs)

    def acks_from(self, segment: int, losses: int) -> int:
        """At least how many logs have each acknowledged change in this segment and later ones.
        `losses`: those of the other nodes until now."""
        acks, first, former_losses = self.copied
        return acks if acks and first <= segment and former_losses == losses else 1

    def with_copied(self, acks: int, segment: int, losses: int) -> Self:
        """The manifest at the start of a segment whose changes this many logs acknowledge."""
        if acks < 2 or not self.address:
            return replace(self, copied=(0, 0, 0))
        before, _, former_losses = self.copied
        if (before, former_losses) == (acks, losses):
            return self
        return replace(self, copied=(acks, segment, losses))

    def with_writer(self, acks: int) -> Self:
        """The manifest at the start of a session whose changes this many logs acknowledge."""
        before, first, losses = self.copied
        if acks >= before:
            return self
        return replace(self, copied=(acks, first, losses) if acks > 1 else (0, 0, 0))

    def with_sessions_ended(self) -> Self:
        """The manifest of a log that was opened without entries that may have been acknowledged:
        that was accepted. Each plug-in gets a new session. In its present one it would miss these
        entries, and take the log for an older copy. Shared sessions continue: other logs have
        them too."""
        ended = [session for session in self.plugins.values() if session < SHARED_SESSIONS]
        return replace(self, former=dict.fromkeys([*self.former, *ended], UNKNOWN))

    def session_of(self, plugin: str) -> int | None:
        """The session of a plug-in in an incarnation; None: it has none, or it has ended."""
        session = self.plugins.get(plugin)
        return None if session in self.former else session

    @property
    def empty(self) -> bool:
        """Whether there is no log: it was not begun, or it was forgotten."""
        return not self.directory and not self.kind

    def known_requests(self, requests: Mapping[int, int]) -> dict[int, int]:
        """The requests of sessions that may still send one again: those of the last plug-in starts,
        and of the last writers."""
        current = set(self.plugins.values())
        return {
            session: request
            for session, request in requests.items()
            if session in current or self.session - SESSIONS_KEPT < session < SHARED_SESSIONS
        }

    def to_json(self) -> dict[str, Any]:
        document = document_of(
            self,
            self.needed,
            archives=[archive.to_json() for archive in self.archives.direct],
            cluster=fields_of(self.cluster),
            epochs=[fields_of(epoch) for epoch in self.epochs],
            requests={str(session): request for session, request in self.requests.items()},
            former={str(session): request for session, request in self.former.items()},
        )
        if self.archives.lists:
            kind = ArchiveLists.field
            document["lists"] = [file.to_json(kind) for file in self.archives.lists]
        return document

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        """The inverse of `to_json`. Raises ValueError if a field is missing or has another type."""
        require(data, *cls.needed)
        archives = Listed(
            checked(data["archives"], tuple[Archive, ...]),
            parsed_lists(data.get("lists", ()), ArchiveLists.field),
        )
        manifest = checked({**data, "archives": archives}, cls)
        for item in manifest.metadata:
            match item:
                case ["schema", int(), str(content)]:
                    bytes.fromhex(content)
                case [str(name), *_] if name != "schema":
                    pass
                case _:
                    raise ValueError("an item of metadata does not have the shape of its type")
        return manifest


def without_turn(pair: Pair) -> Pair:
    """The pair with the version alone, without the turn. The partition's owner assigns a
    transaction its turn, and another member logs it: later turns of the owner may be in the logs
    before it."""
    incarnation, version = pair
    return incarnation, version - version % TURNS if version >= TURNS else version


class NodeManifestLog(ManifestLog[NodeManifest]):
    """The manifests of a node's log, and the lists of archives that they name."""

    def __init__(self, context: Context, node_folder: str) -> None:
        store, randomness = context.store, context.randomness
        super().__init__(
            store, node_folder, NodeManifest, NodeManifest(), context.clock, randomness
        )
        self.lists = ArchiveLists(store, node_folder, randomness, self._named)

    def _named(self) -> set[str]:
        return self.read()[1].archives.names

    def _decode(self, number: int) -> tuple[dict[str, Any], NodeManifest]:
        data, manifest = super()._decode(number)
        return data, replace(manifest, archives=manifest.archives.bound(self.lists.read))

    def _prepared(self, number: int, floor: int, content: NodeManifest) -> NodeManifest:
        former = self._follows(number)
        archives = self.lists.settled(number, content.archives, former.archives)
        dropped = dropped_names(
            former.dropped, former.archives.names, archives.names, number, floor
        )
        return replace(content, archives=archives, dropped=dropped)

    def _finish(self, number: int, content: NodeManifest) -> None:
        if content.archives.lists != self._follows(number).archives.lists:
            self.lists.sweep(number, {*content.archives.names, *content.dropped})
