"""The cost of metadata: a log of 1,000 maps on 100 nodes after 30 days, compared with a new log of
one map on one node."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from imap_wal import layout
from imap_wal.agent.membership.sessions import SessionRegistry
from imap_wal.agent.requests import About
from imap_wal.context import Context
from imap_wal.entry import pack
from imap_wal.format import Position
from imap_wal.layout import Identity
from imap_wal.manifest.list_files import Archive, Listed
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.manifest.snapshots import LowWaterMark, Snapshot, SnapshotFile
from imap_wal.placement import open_store
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.archive_writer import to_absorb
from imap_wal.settings import Settings
from imap_wal.write.committer import Committer
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log
from imap_wal.write.ring import CommitRequest, RingBuffer
from storage_backends import SegmentStore

DAYS, RUNS_A_DAY = 30, 144
"""An archive run every ten minutes; a rewrite of all maps with a prune every night."""
ARCHIVE_BYTES = 200_000
COMMITS, OPENS = 400, 7


def opened(store: SegmentStore, node: str) -> NodeLog:
    return open_node_log(
        LogContext(
            Context(store),
            Identity("bench", "c", node),
            Settings(preallocate=False),
        )
    )


def unlike(digits: int) -> str:
    """This many digits, for a name that compresses as badly as a real one."""
    return f"{random.getrandbits(4 * digits):0{digits}x}"


def archives(maps: int, since_rewrite: int) -> tuple[Archive, ...]:
    """The archives after this many runs since the last rewrite and prune, after small ones were
    merged."""
    kept: list[Archive] = []
    for run in range(since_rewrite):
        place = Position(1, run + 1, 100, 0)
        taken = to_absorb(kept)
        first = taken[0].first if taken else place
        size = ARCHIVE_BYTES + sum(archive.bytes for archive in taken)
        kept = [archive for archive in kept if archive not in taken]
        kept.append(Archive("", "", first, place, 1000, 10, size, 0))
    nonces = [unlike(32) for _ in kept]  # one per archive run
    found = []
    for number in range(maps):
        for each, nonce in zip(kept, nonces, strict=True):
            path = layout.archive_path(
                "bench/c/nodes/n000",
                f"map-{number:04d}",
                each.first,
                each.last,
                1,
                f"{nonce}{number:x}",
            )
            size = each.bytes + random.randrange(ARCHIVE_BYTES)
            found.append(
                replace(
                    each,
                    map=f"map-{number:04d}",
                    path=path,
                    bytes=size,
                    checksum=random.getrandbits(32),
                )
            )
    return tuple(found)


def build(root: Path, maps: int, nodes: int, days: int) -> SegmentStore:
    store = open_store(str(root))
    ids = {}
    for number in range(nodes):
        log = opened(store, f"n{number:03d}")
        for start in range(min(days, 3)):  # plug-in starts
            log.new_session(f"plugin-{start}/{start}")  # plug-in/incarnation, as agents name them
        log.close()
        ids[log.identity.node] = log.directory
    runs = RUNS_A_DAY - 1 if days > 1 else 1
    left = archives(maps, runs)
    for number in range(nodes):
        manifests = NodeManifestLog(Context(store), f"bench/c/nodes/n{number:03d}")
        manifests.update(
            lambda manifest: replace(
                manifest,
                archives=Listed(left),
                archived=(1, runs),
                checkpoint=Position(1, runs, 100, 0),
                newest=runs,
            )
        )
    marks = {node: LowWaterMark(log_id, Position(1, 1, 0, 0)) for node, log_id in ids.items()}
    snapshots = {}
    for number in range(maps):
        path = f"bench/c/snapshot/map-{number:04d}/{days:08d}/part-00000-00000-{unlike(32)}.parquet"
        size = random.randrange(10**6)
        file = SnapshotFile(path, random.getrandbits(32), size, 1010, "", 0)
        snapshots[f"map-{number:04d}"] = Snapshot(days, Listed([file]), marks, 1000, 10, size, 0)
    ClusterLog(Context(store), "bench", "c").manifests.update(
        lambda manifest: replace(manifest, snapshots=snapshots, generation=days)
    )
    return store


def open_seconds(store: SegmentStore) -> float:
    found = []
    for _ in range(OPENS):
        start = time.perf_counter()
        log = opened(store, "n000")
        found.append(time.perf_counter() - start)
        log.close()
    return statistics.median(found)


def commit_seconds(store: SegmentStore) -> float:
    """Median of a commit like an agent's: frame, sync, permit, and whether another cluster has
    claimed the log."""
    log = opened(store, "n000")
    ring: RingBuffer[CommitRequest] = RingBuffer(64)
    sessions = SessionRegistry(log, ClusterLog(Context(store), "bench", "c"))
    session, _ = (
        sessions.hello(b"bench", About(cluster_id="bench", plugin_uuid="bench", purpose="write"))
        if not log.claims.read()[0]
        else (None, False)
    )
    committer = Committer(ring, log, before_ack=sessions.check_newest)
    found = []
    for number in range(1, COMMITS + 1):
        row = ("m", b"key", "raw", b"v" * 100, "raw", False, 0, 0, 0, (1, 0, 1, number))
        batch = CommitRequest(
            [pack(row)], 1, session=session.number if session else 0, request=number
        )
        start = time.perf_counter()
        committer.submit(batch)
        committer.wait(batch)
        found.append(time.perf_counter() - start)
        batch.result()
    committer.close()
    return statistics.median(found)


def run(quick: bool) -> list[dict[str, Any]]:
    """Milliseconds, and the ratio of the large log to the small one, measured alternately."""
    maps, nodes = (200, 20) if quick else (1000, 100)
    small_open, large_open, small_commit, large_commit = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        small = build(Path(folder) / "small", 1, 1, 1)
        large = build(Path(folder) / "large", maps, nodes, DAYS)
        size = max(file.size for file in large.list("bench/c/manifest"))
        own = max(file.size for file in large.list("bench/c/nodes/n000/manifest"))
        for _ in range(3):
            small_open.append(open_seconds(small))
            large_open.append(open_seconds(large))
        for _ in range(3):
            small_commit.append(commit_seconds(small))
            large_commit.append(commit_seconds(large))
    note = f"cluster manifest {size / 1e6:.2f} MB, node manifest {own / 1e6:.2f} MB"
    rows = []
    for what, few, many in (
        ("open a node's log", small_open, large_open),
        ("commit, before its acknowledgement", small_commit, large_commit),
    ):
        ratio = statistics.median(large for large in many) / statistics.median(
            small for small in few
        )
        rows.append(
            {
                "measurement": f"{what}: {maps:,} maps, {nodes} nodes, {DAYS} days",
                "median": round(statistics.median(many) * 1000, 3),
                "least": round(min(many) * 1000, 3),
                "most": round(max(many) * 1000, 3),
                "unit": "ms",
                "ratio": round(ratio, 3),
                "to": "a new log of one map on one node",
                "note": note,
            }
        )
    return rows
