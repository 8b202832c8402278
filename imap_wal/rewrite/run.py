"""Runs a rewrite: plan, merge by an engine, publish; repeated if the log changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from imap_wal.clock import SKEW_MS_MAX, demand_clock
from imap_wal.errors import InvalidSetting, LostRace, ShortLog
from imap_wal.manifest import key_checks
from imap_wal.publish.recorded import RewrittenTable, publish_recorded
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.proof import prove_keys
from imap_wal.rewrite.plan import (
    ATTEMPTS,
    Engine,
    Merged,
    Result,
    RewritePlan,
    prepare,
    with_schemas,
)
from imap_wal.rewrite.publish import archived_bytes, confirm, discard, publish, report_of
from imap_wal.rewrite.report import MapRewrite, RewriteReport, Winner, memory_max_bytes
from imap_wal.settings import RecoveryPolicy
from storage_backends import NotFound

if TYPE_CHECKING:
    from imap_wal.rewrite.conflicts import Resolution


def rewrite(
    log: ClusterLog,
    engine: Engine,
    *,
    maps: Collection[str] | None = None,
    as_of_ms: int | None = None,
    policy: RecoveryPolicy = RecoveryPolicy.FULL,
    dry_run: bool = False,
    skew_ms_max: int = SKEW_MS_MAX,
    resolve: Resolution | None = None,
) -> RewriteReport:
    """Prepare, merge, publish. Writers and readers may run at the same time. `resolve` decides
    conflicts; without it, the new snapshots keep all claims. `maps`: None: all maps. `as_of_ms`
    (Unix time in milliseconds): as for `prepare`. `skew_ms_max`: in milliseconds.

    Raises `LostRace` if another process published first; nothing was published then, run it again.
    Raises `InvalidSetting` if this machine's clock differs from the storage's by more than
    `skew_ms_max`, and the errors of `prepare` and `confirm`."""
    start = log.clock.monotonic()
    log = _with_fixed_keys(log)
    skew_ms = None if dry_run else _enter(log, skew_ms_max)

    def prepared() -> RewritePlan:
        return prepare(
            log,
            maps=maps,
            as_of_ms=as_of_ms,
            policy=policy,
            dry_run=dry_run,
            skew_ms_max=skew_ms_max,
        )

    plan, aside, result, archived = _merge(log, engine, prepared, resolve)
    tables: tuple[RewrittenTable, ...] = ()
    if not dry_run:
        try:
            publish(log, plan, result)
        except LostRace:
            discard(log, plan)
            raise
        # After any other error it is not known whether the manifest names the new files, so they
        # are kept. If it does not, a later prune deletes them.
        recorded = plan.state.manifest.tables
        tables = publish_recorded(log, recorded, [item.map for item in result.maps])
    return RewriteReport(
        namespace=plan.namespace,
        cluster=plan.cluster,
        engine=engine.name,
        maps=tuple(
            _of_map(plan, item, aside, archived.get(item.map, 0))
            for item in sorted(result.maps, key=lambda item: item.map)
        ),
        covered=plan.until,
        missing=plan.state.missing,
        records_read=sum(item.records for item in result.maps),
        seconds=log.clock.monotonic() - start,
        memory_max_bytes=memory_max_bytes(),
        dry_run=dry_run,
        clock_skew_ms=skew_ms,
        steps=result.steps,
        tables=tables,
    )


def _with_fixed_keys(log: ClusterLog) -> ClusterLog:
    return ClusterLog(log.context.with_fixed_keys(), log.namespace, log.cluster)


def _enter(log: ClusterLog, skew_ms_max: int) -> int | None:
    """Compare the clocks and record the keys, before anything is written. Returns the skew of the
    clocks."""
    skew_ms = demand_clock(log.store, log.folder, log.clock, log.randomness, skew_ms_max)
    prove_keys(log)
    key_checks.enter(log.context.keys.key_ring, log.manifests)
    return skew_ms


def _merge(
    log: ClusterLog, engine: Engine, prepared: Callable[[], RewritePlan], resolve: Resolution | None
) -> tuple[RewritePlan, _Aside, Result, Mapping[str, int]]:
    """Plan, decide, merge; repeated if files were removed while they were read. The last value is
    that of `archived_bytes`."""
    for attempt in range(ATTEMPTS):
        plan, aside = prepared(), _Aside({}, {}, {})
        try:
            plan = with_schemas(plan, log)
            archived = archived_bytes(plan)
            if resolve is not None:
                plan, aside = _decide(log, plan, resolve)
            result = engine.run(plan, log)
            if not plan.dry_run:
                confirm(log, plan, result)
            return plan, aside, result, archived
        except NotFound as error:
            discard(log, plan)
            if attempt == ATTEMPTS - 1:
                lost = log.lost(error)
                if isinstance(lost, ShortLog):
                    raise lost from error
                raise LostRace(
                    f"files of this log were removed while they were read, {ATTEMPTS} times in a "
                    f"row ({error}); run it again"
                ) from error
        except BaseException:
            discard(log, plan)
            raise
    raise AssertionError


def _of_map(plan: RewritePlan, item: Merged, aside: _Aside, archived: int) -> MapRewrite:
    return replace(
        report_of(plan, item, archived),
        conflicts=aside.keys.get(item.map, 0),
        winners=tuple(aside.winners.get(item.map, ())),
        undecided=sum(part.conflicts for part in item.parts),
        set_aside=aside.paths.get(item.map, ""),
    )


@dataclass(frozen=True, slots=True)
class _Aside:
    """Map → number of decided keys, map → file with the losing claims, and map → the winners."""

    keys: Mapping[str, int]
    paths: Mapping[str, str]
    winners: Mapping[str, Sequence[Winner]]


def _decide(log: ClusterLog, plan: RewritePlan, resolve: Resolution) -> tuple[RewritePlan, _Aside]:
    """Find and decide the conflicts. A dry run writes nothing. Raises `InvalidSetting` for an
    unknown node."""
    from imap_wal.rewrite import conflicts  # it loads pyarrow

    nodes = conflicts.writers(plan.state.manifest)
    if resolve.node and resolve.node not in nodes:
        names = ", ".join(sorted(nodes))
        raise InvalidSetting(
            f"--resolve names node {resolve.node!r}, which this log does not have; it has {names}"
        )
    with conflicts.Aside(log.context.keys) as aside:
        in_conflict = conflicts.find(log, maps=plan.maps, state=plan.state, until=plan.until)
        decisions = conflicts.decide(in_conflict, resolve, aside)
        paths = {} if plan.dry_run else aside.publish(log, plan.generation)
        return replace(plan, decisions=decisions), _Aside(dict(aside.keys), paths, aside.winners)
