"""Which requests of a session count after its incarnation was followed by another one: those up to
a cutoff.

A member of the old view that is also in the new one gets this in the answer to its hello. It
acknowledges the requests that count, and sends the others again. So this answer must never change.
It depends on the cutoffs of the lifetimes that have begun. The caller checks afterwards that the
newest of them still has its permit: then every later cutoff is above what was read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from imap_wal.entry import ORDER
from imap_wal.errors import LogError
from imap_wal.format import START, Position
from imap_wal.manifest.node import UNKNOWN
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.scan import CutBack, read_scan
from imap_wal.read.scan_list import node_scans
from imap_wal.read.state import ClusterState
from imap_wal.write.node_log import NodeLog
from storage_backends import NotFound


def last_that_count(
    log: NodeLog, cluster: ClusterLog, sessions: Mapping[int, int]
) -> dict[int, int]:
    """Session → its last request that counts; 0: none; or `UNKNOWN`. `sessions`: of this node, with
    their incarnations, all of which were followed by others. Nothing is appended for them
    meanwhile."""
    last = {session: log.requests.get(session, 0) for session in sessions}
    if not any(last.values()):
        return last
    number, manifest = cluster.manifests.read()
    node = log.identity.node
    cuts = {
        session: min(
            lifetime.cuts.get(node, START)
            for lifetime in manifest.lifetimes
            if lifetime.incarnation > incarnation
        )
        for session, incarnation in sessions.items()
    }
    first_cut = min(cuts.values())
    if first_cut >= log.end:
        return last
    for _ in range(ATTEMPTS):
        state = cluster.node(node)
        removed = state.manifest.removed
        if first_cut == START:
            break
        scans = node_scans(
            ClusterState(manifest, {node: state}, {}, number), node, since=first_cut, covered=True
        )
        try:
            above = _first_above(cluster, scans, cuts)
        except NotFound:
            continue  # it was archived or removed after it was listed
        except LogError:
            break
        return {
            session: UNKNOWN
            if removed > cuts[session]
            else min(request, above.get(session, request + 1) - 1)
            for session, request in last.items()
        }
    return {session: UNKNOWN if request else 0 for session, request in last.items()}


def _first_above(
    cluster: ClusterLog, scans: Iterable[FileScan], cuts: Mapping[int, Position]
) -> dict[int, int]:
    """Session → its first request in an entry above its cutoff."""
    firsts: dict[int, int] = {}
    for scan in scans:
        raw = replace(scan, cuts=())
        try:
            _look(cluster, raw, cuts, firsts)
        except CutBack:  # an open removed the frame that was the last one at the cutoff
            _look(cluster, replace(raw, since=None), cuts, firsts)
    return firsts


def _look(
    cluster: ClusterLog, scan: FileScan, cuts: Mapping[int, Position], firsts: dict[int, int]
) -> None:
    for changes in read_scan(cluster.context, scan, positions=True):
        for row, place in zip(changes.rows, changes.positions or (), strict=True):
            _, _, session, request = row[ORDER]
            if session in cuts and place > cuts[session]:
                firsts[session] = min(request, firsts.get(session, request))
