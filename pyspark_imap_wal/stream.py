"""`spark.readStream.format("imap_wal")`: the changes of one cluster, those of each node in the
order of its log.

Spark writes the end of every batch into its checkpoint before the batch is read. A batch that is
read again after a crash, with the same start and end, has the same rows: they are named by
positions, and a position is found in a segment or in the archive that replaced it. With a sink that
writes a batch once, every entry is there exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from imap_wal.context import open_context
from imap_wal.errors import CorruptLog, InvalidSetting, MissingNode
from imap_wal.format import START, Position
from imap_wal.manifest.reader_manifest import Base, ReaderManifest
from imap_wal.manifest.readers import Reader
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans, node_scans
from imap_wal.read.state import ClusterState
from imap_wal.retention.history import base_of
from pyspark_imap_wal.batch import (
    FilePartition,
    by_bytes,
    metadata_for,
    planned_again,
    query_of,
    schema_of,
)
from pyspark_imap_wal.changes.batch import read_task
from pyspark_imap_wal.changes.batch import tasks as image_tasks
from pyspark_imap_wal.changes.images import ChangesPartition
from pyspark_imap_wal.changes.known import (
    Places,
    demand_undropped,
    is_below,
    known_at,
    planned,
    with_base,
)
from pyspark_imap_wal.columns import EntryQuery, read_columns
from pyspark_imap_wal.filters import Filters
from pyspark_imap_wal.offsets import BatchLimit, Offset, demand_unpruned, limited
from pyspark_imap_wal.options import (
    IGNORE,
    IMAGES,
    LATEST,
    RAW,
    Options,
    clusters_of,
    known,
    opened_log,
    why_none,
)
from pyspark_imap_wal.plain_errors import plain_errors
from storage_backends import NotFound

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    OLD_SPARK = ""
except ImportError:
    OLD_SPARK = pyspark.__version__
    """A release before 4.2: it lets a stream read up to its present end, whatever the trigger."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A placeholder: these releases of Spark do not have it."""


def demand_newer(spark: str, options: Options) -> None:
    """Raises `InvalidSetting` for a query that a release of Spark before 4.2 would run wrongly,
    without an error. A stream does not know its trigger, so the query has to say that it is not
    affected."""
    if options.rows_max or options.bytes_max:
        name = "rows_per_batch" if options.rows_max else "bytes_per_batch"
        raise InvalidSetting(
            f"{name} needs Spark 4.2 or newer: Spark {spark} does not limit the batches of a data "
            "source in Python; leave the option out"
        )
    if not options.available_now:
        raise InvalidSetting(
            f"after a crash, Spark {spark} ends a query with trigger(availableNow=True) too early: "
            "it repeats the last batch and reads no further. Use Spark 4.2 or newer; "
            "or set Spark's property spark.sql.streaming.triggerAvailableNowWrapper.enabled to "
            'true, and the option available_now to "wrapped". For a query with another trigger, '
            'set the option available_now to "unused"'
        )


class ImapWalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads them in the workers. Offsets are those of
    `pyspark_imap_wal.offsets`."""

    def __init__(self, options: Options, kinds: Mapping[str, str]) -> None:
        if options.mode != RAW or options.as_of is not None or options.nodes:
            raise InvalidSetting(
                "a stream has the changes of a log: it takes no mode, no as_of and no node; "
                "filter its rows"
            )
        if options.rows_max and options.bytes_max:
            raise InvalidSetting("rows_per_batch and bytes_per_batch exclude each other")
        if OLD_SPARK:
            demand_newer(OLD_SPARK, options)
        self._options, self._kinds = options, dict(kinds)
        self._log: ClusterLog | None = None
        self._registration: ReaderRegistration | None = None
        self._target: Mapping[str, Position] | None = None
        self._last: Offset | None = None
        self._newest: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None, "_registration": None}

    # ---- on the driver ----

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts. Raises the error of `Options.starts`."""
        start, places = self._first(), self._options.starts()
        registered = self._registered()
        if registered is not None:
            registered.begin(start.nodes)
            if places is not None and self._options.changes == IMAGES:
                _until(lambda: self._keep_former(registered, places))
        return start.to_json()

    def _first(self) -> Offset:
        """Where a new query starts."""
        self._open()  # its errors are raised here
        places = self._options.starts()
        if places is None:
            return Offset(start=self._options.starting)
        state = self._state()
        return self._with_drops(Offset().moved(state, state.plain(places)), state)

    @plain_errors()
    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """The end of the next batch. Before Spark 4.2 there are no arguments."""
        last = Offset.from_json(start) if start is not None else self._last or self._first()
        self._still_registered(last)
        size = BatchLimit.of(limit)
        # Without the argument, a query that continues looks like a new one.
        registered = self._registered() if last.start and start is not None else None

        def end() -> tuple[Offset, bool]:
            state = self._state()
            end_offset = self._end(last, state, size, self._target)
            self._newest = self._end(last, state) if size or self._target else end_offset
            is_kept = registered is None or end_offset == last or registered.keep(state, state)
            return end_offset, is_kept

        self._last = planned_again(lambda: _until(end))
        return self._last.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the log ended when the last batch was planned, whatever its limit: `latestOffset`
        in the progress of a query. Spark 4.2 or newer asks for it."""
        return self._newest.to_json() if self._newest is not None else None

    def _end(
        self,
        offset: Offset,
        state: ClusterState,
        limit: BatchLimit | None = None,
        target: Mapping[str, Position] | None = None,
    ) -> Offset:
        log, maps = self._open(), self._options.maps
        self._demand_same_logs(state, offset)
        # A first batch reads the snapshots, which cover the logs up to here: of what is below, only
        # they may be left.
        floor = _marks(state) if offset.whole else {}
        # A batch that should have entries of a removed backfill is refused when it is planned.
        ends, gone = _ends(log, state, offset.nodes), state.gone()
        if offset.start == LATEST:  # the next batch is the first with entries
            return self._with_drops(offset.moved(state, ends | gone), state)
        if target is not None:
            ends = {n: min(end, target[n]) for n, end in ends.items() if n in target}
        if limit is not None:
            since = {**floor, **offset.nodes}
            ends = limited(log, state, since, ends, limit, maps or None)
        ends = {
            node: max(ends.get(node, START), floor.get(node, START)) for node in {*ends, *floor}
        } | gone
        if not offset.whole:
            end = self._with_drops(offset.moved(state, ends), state)
            return offset if end == replace(offset, snapshots={}) else end
        generations = self._generations(state.manifest.snapshots)
        if not ends and not generations:
            return offset
        end = self._with_drops(offset.moved(state, ends), state)
        return replace(end, snapshots=generations)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of a batch, from the options."""
        if self._options.bytes_max:
            return ReadMaxBytes(self._options.bytes_max)
        rows = self._options.rows_max
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than the log's end now."""
        self._target = planned_again(lambda: _ends(self._open(), self._state(), {}))

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        first, last = Offset.from_json(start), Offset.from_json(end)
        return (
            []
            if first.start == LATEST or last.start
            else planned_again(lambda: self._tasks(first, last))
        )

    def _tasks(self, first: Offset, last: Offset) -> list[InputPartition]:
        log, state, options = self._open(), self._state(), self._options
        for offset in (first, last):
            self._demand_same_logs(state, offset)
        for node, end in last.nodes.items():
            begin = first.nodes.get(node, START)
            gone = last.directories.get(node) in state.manifest.forgotten
            if gone and begin < end and not options.partial:
                raise _forgotten(node, begin, end)
        registered = self._registered()
        base = registered.read().base if registered is not None else None
        if first.whole:
            state = self._as_planned(state, last, base)
            self._keep_first(registered, base, state, last)
        else:
            for node, end in last.nodes.items():
                demand_unpruned(state, node, first.nodes.get(node, START), end)
            if options.voided != IGNORE:
                _demand_unvoided(log, state, first, last)
        metadata = metadata_for(options, self._kinds, log, state)
        maps = options.maps or None
        if options.changes == IMAGES:
            start = None if first.whole else first.nodes
            if not first.whole:
                demand_undropped(first.dropped, last.dropped)
            before, changes = planned(log, state, start, last.nodes, maps, base)
            both = _as_then(before, last), _as_then(changes, last)
            return [*image_tasks(log, options, both, metadata)]
        scans = cluster_scans(
            state,
            since=first.nodes,
            until=last.nodes,
            maps=maps,
            snapshots=first.whole,
            covered=not first.whole,
        )
        return [
            FilePartition(log.namespace, log.cluster, part, metadata, log.context.place)
            for part in by_bytes(_as_then(scans, last), options.task_bytes)
        ]

    @plain_errors()
    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` is in Spark's checkpoint as done: prune may remove it. Raises
        `InvalidSetting` if the reader was forgotten."""
        self._publish(Offset.from_json(end))

    def stop(self) -> None:
        """Close connections."""
        if self._log is not None:
            self._log.store.close()
            self._log = self._registration = None

    # ---- in a worker ----

    def read(self, partition: Any) -> Iterator[Any]:
        """The rows of a task, as record batches. Raises the errors of `read_columns`."""
        if isinstance(partition, ChangesPartition):
            yield from read_task(partition, self._options, self._kinds, Filters.of(self._options))
            return
        with opened_log(partition.place, partition.namespace, partition.cluster) as log:
            query = query_of(
                self._options,
                self._kinds,
                partition.metadata,
                maps=self._options.maps,
                filters=Filters.of(self._options),
                in_order=True,
            )
            for scan, source in ahead(log.context, partition.scans):
                yield from read_columns(log, scan, query, source)

    # ---- what a batch needs ----

    def _open(self) -> ClusterLog:
        if self._log is None:
            options = self._options
            context = open_context(known(options.path))
            clusters = clusters_of(context.store, options.namespaces, options.clusters)
            if not clusters:
                why = why_none(context.store, options)
                context.store.close()
                raise InvalidSetting(f"a stream follows one cluster: {why}")
            if len(clusters) != 1:
                context.store.close()
                names = ", ".join("/".join(cluster) for cluster in clusters)
                raise InvalidSetting(
                    f"a stream follows one cluster; found under {options.path}: {names}; "
                    "name it with the options namespace and cluster"
                )
            self._log = ClusterLog(context, *clusters[0])
        return self._log

    def _registered(self) -> ReaderRegistration | None:
        """The registration; None without the option `reader`."""
        options = self._options
        if options.reader_name and self._registration is None:
            images = options.changes == IMAGES
            maps = options.maps or None
            self._registration = ReaderRegistration(
                self._open(), options.reader_name, maps, images=images
            )
        return self._registration

    def _keep_former(
        self, registered: ReaderRegistration, places: Mapping[str, Position]
    ) -> tuple[None, bool]:
        """Keep the state of the maps at positions. Raises `InvalidSetting` if it is not known."""
        log, state = self._open(), self._state()
        maps, base = self._options.maps or None, registered.read().base
        # Spark asks again after a crash, and the same state may only be known from the base.
        if base is not None and is_below(base, state, places) and with_base(log, state, base, maps):
            return None, True
        return None, registered.keep(state, known_at(log, state, places, maps))

    def _state(self) -> ClusterState:
        return self._open().state().demand(self._options.recovery_policy)

    def _still_registered(self, offset: Offset) -> None:
        """Publish where a query continues; fails if its reader was forgotten meanwhile."""
        registered = self._registered()
        if registered is None or self._last is not None:
            return
        registered.read()
        self._publish(offset)

    def _publish(self, offset: Offset) -> None:
        """Publish how far the registered reader has read, unless the log is another one now."""
        registered = self._registered()
        if registered is None or offset.start:
            return

        def advance() -> None:
            state = self._state()
            self._demand_same_logs(state, offset)
            registered.advance(offset.nodes, state)

        planned_again(advance)

    def _demand_same_logs(self, state: ClusterState, offset: Offset) -> None:
        for node, directory in offset.directories.items():
            now = state.nodes.get(node)
            end, read = state.end_of_gone(node, directory), offset.nodes.get(node, START)
            if end is not None:
                if read < end and not self._options.partial:
                    raise _forgotten(node, read, end)
                continue
            if now is None and self._options.partial:
                continue  # left out
            if now is None or now.manifest.directory != directory:
                there = "none" if now is None else now.manifest.directory
                raise MissingNode(
                    f"node {node!r} had the log directory {directory}, of which the stream has "
                    f"read a part; now it is {there}",
                    "bring the log back, or start the query again without its checkpoint",
                )
            state.plain({node: read})

    def _as_planned(self, state: ClusterState, end: Offset, base: Base | None) -> ClusterState:
        """The logs with the snapshots that the first batch has in its offset. Raises
        `InvalidSetting` if they were replaced, and are not kept as `base`."""
        if self._generations(state.manifest.snapshots) == end.snapshots:
            return state
        if base is not None and self._generations(base.snapshots) == end.snapshots:
            planned = with_base(self._open(), state, base, self._options.maps or None)
            if planned is not None:
                return planned
        raise InvalidSetting(
            "the first batch of this stream was not finished, and the snapshots that it "
            "reads were replaced by a rewrite since it was planned: start the query "
            "again without its checkpoint and without what the batch has written; with the option "
            "`reader`, the log keeps them"
        )

    def _keep_first(
        self,
        registered: ReaderRegistration | None,
        base: Base | None,
        state: ClusterState,
        end: Offset,
    ) -> None:
        """Keep the snapshots that a first batch reads: before Spark 4.2, `latestOffset` does not
        know that a batch is the first one. Raises `NotFound` if they were replaced meanwhile."""
        is_kept = base is not None and self._generations(base.snapshots) == end.snapshots
        if registered is None or is_kept:
            return
        if not registered.keep(state, state):
            raise NotFound("the snapshots of this batch were replaced", self._open().folder)

    def _generations(self, snapshots: Mapping[str, Snapshot]) -> dict[str, int]:
        return {name: snapshot.generation for name, snapshot in self._followed(snapshots)}

    def _followed(self, snapshots: Mapping[str, Snapshot]) -> Iterator[tuple[str, Snapshot]]:
        """The snapshots of the maps that this stream follows."""
        maps = self._options.maps
        return (item for item in snapshots.items() if not maps or item[0] in maps)

    def _with_drops(self, offset: Offset, state: ClusterState) -> Offset:
        """The offset with the maps that were dropped, for images."""
        if self._options.changes != IMAGES:
            return offset
        followed = self._followed(state.manifest.snapshots)
        dropped = {name: snapshot.dropped for name, snapshot in followed if snapshot.dropped}
        return replace(offset, dropped=dropped)


T = TypeVar("T")


def _forgotten(node: str, read: Position, end: Position) -> MissingNode:
    return MissingNode(
        f"node {node!r} was forgotten (imap-wal forget-node), or it is a backfill that a prune "
        "removed because snapshots cover it, and this stream has not read its changes after "
        f"{read}, up to {end}",
        "start the query again without its checkpoint, or continue without these changes, with the "
        "option partial. With the option reader, a node is not forgotten before the stream has "
        "read it",
    )


def _until(keep: Callable[[], tuple[T, bool]]) -> T:
    """What `keep` returns. It is called again while it says that the snapshots were replaced
    meanwhile. If they are replaced each time, the next batch keeps its own."""
    for _ in range(ATTEMPTS):
        result, is_kept = keep()
        if is_kept:
            break
    return result


def _ends(
    log: ClusterLog, state: ClusterState, since: Mapping[str, Position]
) -> dict[str, Position]:
    """Node → the position of its last entry, which may have been removed."""
    ends = log.ends(since, state)
    return {
        node: max(ends.get(node, START), node_state.manifest.removed, since.get(node, START))
        for node, node_state in state.nodes.items()
        if max(ends.get(node, START), node_state.manifest.removed) > START
    }


def _as_then(scans: Iterable[FileScan], end: Offset) -> list[FileScan]:
    """The files with the rules that applied when the batch was planned: cuts of later lifetimes do
    not apply."""
    return [
        replace(scan, cuts=tuple(cut for cut in scan.cuts if cut[0] <= end.incarnation))
        for scan in scans
    ]


def _marks(state: ClusterState) -> dict[str, Position]:
    """Node → the farthest position that a snapshot covers: a first batch ends there or later."""
    marks: dict[str, Position] = {}
    for node in state.nodes:
        places = state.covered(node).values()
        if places:
            marks[node] = max(places)
    return marks


def _demand_unvoided(log: ClusterLog, state: ClusterState, first: Offset, last: Offset) -> None:
    """`CorruptLog` if entries up to `first` were void from the start: a cluster that took over
    later does not count them."""
    for lifetime in state.manifest.lifetimes:
        if not first.incarnation < lifetime.incarnation <= last.incarnation:
            continue
        for node, read in first.nodes.items():
            cut = lifetime.cuts.get(node, START)
            if node not in state.nodes or cut >= read:
                continue
            scans = node_scans(
                state,
                node,
                since=cut if cut > START else None,
                until=read,
                covered=True,
            )
            places = _of_older(log, scans, lifetime.incarnation)
            if places:
                raise CorruptLog(
                    state.nodes[node].folder,
                    0,
                    f"{len(places)} entries that this stream has read, from {places[0]} to "
                    f"{places[-1]}, were never acknowledged: incarnation {lifetime.incarnation} "
                    "took over before them, and no restore has them",
                    "remove them from what the stream has written, and continue with the "
                    "option voided=ignore",
                )


def _of_older(log: ClusterLog, scans: list[FileScan], incarnation: int) -> list[str]:
    """Positions after a cut of entries of an older incarnation. Removed files were covered by a
    snapshot, which does not have such entries, so those are unknown."""
    names = dict.fromkeys(("incarnation", "epoch", "segment", "frame", "index"), "bigint")
    query = EntryQuery(schema_of(names))
    return [
        str(Position(*(line[name] for name in ("epoch", "segment", "frame", "index"))))
        for scan in scans
        for batch in read_columns(log, replace(scan, cuts=()), query)
        for line in batch.to_pylist()
        if line["incarnation"] < incarnation
    ]


# What the log keeps for a stream with images: the base of its next batch.
#
#   a batch is committed at S    base ── images of the next batch begin here; covers nothing above S
#                                proposed ── the snapshots of now; the base as soon as S is above
#                                            their marks
#
# So two bases are kept at most, however often the log is compacted while a batch runs. See
# `imap_wal.manifest.readers` for how a base is replaced.

_log = logging.getLogger("imap_wal")


class ReaderRegistration:
    """The registration of a stream as a reader. `maps`: those that it follows; None: all. `images`:
    whether it needs the state of the maps before each batch."""

    def __init__(
        self, log: ClusterLog, name: str, maps: Collection[str] | None, *, images: bool
    ) -> None:
        self._log, self._name, self._maps, self._images = log, name, maps, images
        self._reader = Reader(log.context, log.folder, name)
        self._looked: Base | None = None
        """The proposed base, if this process has checked that its files are kept."""

    def begin(self, places: Places) -> None:
        """Register a new query, which has read up to `places`."""
        self._reader.begin(places)

    def read(self) -> ReaderManifest:
        """What is registered. Raises `InvalidSetting` if the reader was forgotten."""
        return self._reader.read()

    def keep(self, state: ClusterState, current: ClusterState) -> bool:
        """Make the base of the next batch from `current`: `state`, or `state` with former
        snapshots. False: the snapshots were replaced meanwhile."""
        base = base_of(state, current, self._maps, None)
        self._reader.propose(base)
        if not self._is_current(state):
            return False
        self._reader.advance({}, base)
        return True

    def advance(self, places: Places, state: ClusterState) -> None:
        """Publish that a batch up to `places` is committed. `state`: of the logs."""
        if not self._images:
            self._reader.advance(places)
            return
        registered = self.read()
        base = registered.base
        # There is no base if the process ended between the registration and its first base. A base
        # is of no use if a removal had read the readers before it was registered, or if the query
        # follows more maps now.
        if base is None or with_base(self._log, state, base, self._maps) is None:
            self._reader.advance(places, base)
            with suppress(InvalidSetting):  # the next batch raises it
                self.keep(state, known_at(self._log, state, places, self._maps))
            return
        proposed = self._looked
        if proposed is None or proposed != registered.proposed:  # replaced: may not be kept
            proposed = self._propose(state, base)
        if proposed is not None and is_below(proposed, state, places):
            base, proposed = proposed, None
        self._looked = proposed
        self._reader.advance(places, base, proposed)

    def _propose(self, state: ClusterState, base: Base) -> Base | None:
        new = base_of(state, state, self._maps, base)
        if new.is_same(base):
            return None
        self._reader.propose(new)
        return new if self._is_current(state) else None

    def _is_current(self, state: ClusterState) -> bool:
        """Whether the cluster has the snapshots of `state` now."""
        return self._log.manifest().snapshots == state.manifest.snapshots
