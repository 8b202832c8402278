"""Time travel: each moment of the last `history_s` seconds can be read again.

    keep_history   before a compaction: the current snapshots become a base, and bases that are
                   too old are dropped
    at_time        the snapshots from which a former moment is read, and the log above them

The bases are those of a registered reader (`imap_wal.manifest.readers.HISTORY`), so removals keep
their files, and the log above the oldest one. With these, each moment since that base can be read,
whichever process rewrites or prunes. Newer bases allow the oldest one to be dropped, and make
reads cheaper.

The order of `keep_history` is that of every reader: a new base is published, then its snapshots
must still be the current ones, and only then are older bases dropped. A base of which something was
removed is not used, and the next `keep_history` drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from imap_wal.clock import SKEW_MS_MAX, demand_clock
from imap_wal.errors import LogError
from imap_wal.format import START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.readers import (
    HISTORY,
    Reader,
    bases_of_history,
    with_base,
    without_bases,
)
from imap_wal.manifest.snapshots import PartitionVersions, Snapshot
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.state import ClusterState
from imap_wal.retention.kept import DAY_MS
from imap_wal.settings import RecoveryPolicy

SHARES = 4
"""A further base is made after this part of the time, so about this many are kept."""


@dataclass(frozen=True, slots=True)
class Past:
    """The logs with the snapshots of a former moment. `unknown`: maps whose state is no longer
    known; they have their present snapshots."""

    state: ClusterState
    unknown: frozenset[str] = frozenset()


def keep_history(log: ClusterLog, history_s: int, skew_ms_max: int = SKEW_MS_MAX) -> str:
    """Keep what reads of the last `history_s` seconds need, and no more; 0: change nothing. Call it
    before what it keeps is rewritten or removed. Returns a warning, or "".

    Raises `InvalidSetting` if something is too old, and this machine's clock differs from the
    storage's by more than `skew_ms_max`; and the errors of `ClusterLog.state`."""
    if not history_s:
        return ""
    reader = Reader(log.context, log.folder, HISTORY)
    for _ in range(ATTEMPTS):
        former = bases_of_history(log.store, log.folder)  # first: none is newer than the state
        state = log.state().demand(RecoveryPolicy.PARTIAL)
        broken = [base for base in former if not _is_whole(log, state, base)]
        newest = next((base for base in reversed(former) if base not in broken), None)
        new = base_of(state, state, None, newest)
        if newest is not None and not _is_due(new, newest, history_s):
            break
        reader.keep(with_base(new), DAY_MS)
        now = log.state().demand(RecoveryPolicy.PARTIAL)
        if now.manifest.snapshots == state.manifest.snapshots and _has_log(now, new):
            break
        reader.keep(without_bases([new]), DAY_MS)
    limit_ms = log.clock.now_ms() - history_s * 1000 - SKEW_MS_MAX
    sound = without_bases(broken)(bases_of_history(log.store, log.folder))
    if _needed(sound, limit_ms) != sound:
        demand_clock(log.store, log.folder, log.clock, log.randomness, skew_ms_max)
    reader.keep(lambda bases: _needed(without_bases(broken)(bases), limit_ms), DAY_MS)
    return ""


def _is_due(new: Base, newest: Base, history_s: int) -> bool:
    """Whether a base is worth its files. For a map that was dropped since, the older ones are of no
    use. If the newest one is of a clock that was wrong, it must not be the last for years."""
    later_ms = abs(new.until_ms - newest.until_ms)
    dropped = any(
        snapshot.dropped and snapshot.dropped != newest.dropped(name)
        for name, snapshot in new.snapshots.items()
    )
    return dropped or (not new.is_same(newest) and later_ms * SHARES >= history_s * 1000)


def _needed(bases: tuple[Base, ...], limit_ms: int) -> tuple[Base, ...]:
    """Without the bases before one that has every moment since `limit_ms`."""
    old = [number for number, base in enumerate(bases) if base.until_ms <= limit_ms]
    return bases[max(old, default=0) :]


def at_time(
    log: ClusterLog, state: ClusterState, time_ms: int, maps: Collection[str] | None = None
) -> Past:
    """What to read for the state of the maps (None: all) at a Unix time. Of the log, the entries
    count that were written until then. `state`: of `ClusterState.demand`. Raises StorageError, and
    `CorruptLog` for the manifest of the history."""

    def fits(snapshot: Snapshot) -> int:
        """2: it has nothing that was written later. 1: only from a writer whose clock is ahead."""
        return (snapshot.until_ms <= time_ms) + (snapshot.until_ms <= time_ms - SKEW_MS_MAX)

    return _chosen(log, state, maps, fits)


def at_positions(
    log: ClusterLog,
    state: ClusterState,
    places: Mapping[str, Position],
    maps: Collection[str] | None = None,
) -> Past:
    """The same for a last position of every node."""

    def fits(snapshot: Snapshot) -> int:
        marks = snapshot.marks.items()
        return 2 * all(mark.position <= places.get(node, START) for node, mark in marks)

    return _chosen(log, state, maps, fits)


def _chosen(
    log: ClusterLog,
    state: ClusterState,
    maps: Collection[str] | None,
    fits: Callable[[Snapshot], int],
) -> Past:
    """For each map the newest snapshot that fits. If there is none, the oldest of those that may
    have entries of a clock that is ahead: it has the fewest."""
    now = state.manifest
    fit_of_map = {
        name: fits(snapshot)
        for name, snapshot in now.snapshots.items()
        if maps is None or name in maps
    }
    best = {name: fit for name, fit in fit_of_map.items() if fit < 2}
    if not best:
        return Past(state)
    snapshots: dict[str, Snapshot] = dict(now.snapshots)
    versions: dict[int, PartitionVersions] = dict(now.versions)
    for base in _usable(log, state):
        for name in [candidate for candidate, fit in best.items() if fit < 2]:
            former = base.snapshots.get(name)
            fit = 2 if former is None else fits(former)
            if fit < max(best[name], 1) or not _has_files(log, now, name, former):
                continue
            best[name] = fit
            del snapshots[name]
            if former is not None:
                snapshots[name] = former
                versions |= base.versions
    unknown = frozenset(name for name, fit in best.items() if not fit)
    manifest = replace(now, snapshots=snapshots, versions=versions, all_maps={})
    return Past(replace(state, manifest=manifest), unknown)


def _usable(log: ClusterLog, state: ClusterState) -> Iterator[Base]:
    """The bases above which the log is whole, newest first."""
    bases = bases_of_history(log.store, log.folder)
    return (base for base in reversed(bases) if _has_log(state, base))


def _is_whole(log: ClusterLog, state: ClusterState, base: Base) -> bool:
    try:
        return _has_log(state, base) and all(
            _was_dropped(state.manifest, name, base)
            or _has_files(log, state.manifest, name, snapshot)
            for name, snapshot in base.snapshots.items()
        )
    except LogError:
        return False  # a list of its files is damaged: it is replaced


def _was_dropped(now: ClusterManifest, name: str, base: Base) -> bool:
    """Whether a map was dropped after `base` was made. If so, its former files are removed."""
    current = now.snapshots.get(name)
    return current is not None and current.dropped != base.dropped(name)


def _has_log(state: ClusterState, base: Base) -> bool:
    """Whether the log above a base is there: no part of a log was lost, no node was forgotten or
    replaced (these count as losses too), and no more was removed than when the base was made."""
    return state.manifest.losses == base.losses and all(
        removed <= max(base.positions.get(node, START), base.removed.get(node, START))
        for node, removed in state.removed().items()
    )


def _has_files(log: ClusterLog, now: ClusterManifest, name: str, former: Snapshot | None) -> bool:
    """Whether the files of a map's former snapshot (None: it had none) are there, and the map was
    not dropped since."""
    current = now.snapshots.get(name)
    dropped = 0 if former is None else former.dropped
    if current is not None and current.dropped != dropped:
        return False
    there = set(current.paths) if current is not None else set()
    paths = () if former is None else former.paths
    return all(path in there or log.store.exists(path) for path in paths)


# The base of the present, or of a former state of the maps (`imap_wal.manifest.readers`).


def base_of(
    state: ClusterState, covering: ClusterState, maps: Collection[str] | None, former: Base | None
) -> Base:
    """The base that has the snapshots of `covering`: those of `state`, or former ones. `former`:
    the base until now."""
    manifest = covering.manifest
    snapshots = {
        name: snapshot
        for name, snapshot in manifest.snapshots.items()
        if maps is None or name in maps
    }
    # A map without a snapshot is only known to have no entries up to the mark of all maps.
    absent = maps is None or any(name not in snapshots for name in maps)
    positions = {}
    for node in covering.nodes:
        lowest = [_mark(snapshot, node, covering) for snapshot in snapshots.values()]
        if absent:
            lowest.append(covering.complete(node))
        least = former.positions.get(node, START) if former is not None else START
        positions[node] = max(least, min(lowest, default=START))
    used = {snapshot.versions for snapshot in snapshots.values()}
    return Base(
        positions,
        state.removed(),
        snapshots,
        {number: table for number, table in manifest.versions.items() if number in used},
        None if maps is None else tuple(sorted(maps)),
        dict(manifest.losses),
    )


def _mark(snapshot: Snapshot, node: str, state: ClusterState) -> Position:
    """The position up to which a snapshot covers a node's log."""
    return state.manifest.reach_in(state.nodes[node].manifest)(snapshot.marks.get(node))
