"""Rewrites of small logs of members, and what they leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.context import Context
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.report import RewriteReport
from imap_wal.rewrite.run import rewrite
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore
from tests.kit.logs import SMALL, cluster
from tests.support import FakeClock

ENGINE = LocalEngine(SMALL)


def run(store: SegmentStore, clock: FakeClock | None = None, **options: Any) -> RewriteReport:
    return rewrite(cluster(store, clock), ENGINE, **options)


def snapshot(store: SegmentStore, name: str = "orders") -> Any:
    return cluster(store).manifest().snapshots[name]


def archive(store: SegmentStore, log: NodeLog, writing: int | None = None) -> None:
    log.rotate()
    folder, name = log.identity.node_folder, log.identity.node
    archive_sealed(Context(store), folder, name, log.manifests, writing=writing or log.unsealed)


def members(store: SegmentStore, incarnation: int = 1) -> None:
    """From here on the log is one of Hazelcast members, in a new lifetime of their cluster."""
    cuts = find_cutoffs(cluster(store)).cuts
    born = IncarnationRecord(f"id-{incarnation}", incarnation, cuts)
    cluster(store).manifests.update(lambda now: replace(now, lifetimes=(*now.lifetimes, born)))


HOUR_MS = 3_600_000
