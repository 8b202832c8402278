"""What an agent knows about itself at one moment, without waiting for anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imap_wal.agent.own_disk.uploads import UploadStatistics
from imap_wal.agent.transport.router import ConnectionStatistics
from imap_wal.read.merge import MergeProgress, MergeStatistics
from imap_wal.rewrite.compaction import CompactionStatistics
from imap_wal.worker import WorkerState
from imap_wal.write.committer import CommitStatistics
from imap_wal.write.maintenance import MaintenanceStatistics
from imap_wal.write.ring import RingStatistics
from storage_backends.reserve import DiskState


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """Plain values. Their names are those of `stat`'s answer, where it has them too.

    `failure`: why nothing can be appended; "" if it can. `disk_full`: that is
    the reason. `fenced`: another process has the log.
    `stopping`: the agent is ending. `turn_seconds`: how long the current turn of the loop has
    lasted. `appends`, `duplicates`: changes that members sent, and those of them that were already
    in the log. `errors`: answers with an error, by code. `compaction_part`: how much of the logs
    the running compaction has read, from 0 to 1; None: none runs. `peers_refused`: connections that
    were not admitted. `incarnation`: of the newest claim. `alive`: its members may be alive.
    `absent`: nodes for which the next start would wait, because no agent of them runs.
    `compaction_age_s`, `backup_age_s`: since the newest snapshot was written, and since the last
    whole backup ended; None: not known.
    `unread_bytes`: what each registered stream has not read of this node's log. `stalled_s`: for
    how long each of them has not moved although there is more to read; 0: it has read everything.
    `tables_stalled_s`: for how long no publication of a published table has begun although there is
    a newer snapshot, the greatest value of all tables; None: no table.
    `clock_skew_ms`: by how much this agent's clock is ahead of another one. `clock_doubt`: why
    restores keep expired entries because of that; "" if they leave them out.
    `waiting_seconds`: how long a new cluster has waited for the log; 0: none waits. `members`,
    `superseded`: connected members, and those of them that have lost the log to another cluster.
    `settling`: partitions that connected members have not yet compared with the log,
    `settling_seconds`: for how long there were any since the log was opened, `settling_running_s`:
    for how long there have been any now, `ready_timeout_s`: for how long the agent is not ready
    then. `maps`: how many of each of `reports.KINDS` members use. `lease_age_s`: None without a
    lease.
    `merge`: the last part of the last merge. `merge_error`: why the last merge failed; "" if it
    did not. `disks`: of local folders, by `root` and `wal`. `positions`: up
    to where each node's log is merged. `upload`: what only the node's own disk has; None: all nodes
    can see its segments. `tail_reads`: parts of segments that were served to other agents.
    `left_out`: nodes whose entries, or a part of them, the last merge left out, with the reason.
    `read_from_copies`: nodes that it could not read, whose acknowledged changes other logs have."""

    namespace: str
    cluster: str
    node: str
    durability: str
    epoch: int
    uptime_seconds: float
    failure: str
    disk_full: bool
    fenced: bool
    stopping: bool
    turn_seconds: float
    threads: Mapping[str, WorkerState]
    appends: int
    duplicates: int
    errors: Mapping[str, int]
    commit: CommitStatistics
    ring: RingStatistics
    ring_bytes_max: int
    maintenance: MaintenanceStatistics
    compaction: CompactionStatistics
    compaction_part: float | None
    lease_age_s: float | None
    connections: ConnectionStatistics
    revoked: int
    peers_refused: int
    incarnation: int
    alive: bool
    absent: tuple[str, ...]
    compaction_age_s: float | None
    backup_age_s: float | None
    unread_bytes: Mapping[str, int]
    stalled_s: Mapping[str, float]
    tables_stalled_s: float | None
    clock_skew_ms: int
    clock_doubt: str
    waiting_seconds: float
    members: int
    superseded: int
    settling: int
    settling_seconds: float
    settling_running_s: float
    maps: Mapping[str, int]
    ready_timeout_s: float
    reads: int
    unmerged_bytes: int
    merged: MergeStatistics
    merge: MergeProgress | None
    merge_error: str
    conflicts: int
    disks: Mapping[str, DiskState]
    positions: Mapping[str, str]
    upload: UploadStatistics | None
    tail_reads: int
    left_out: Mapping[str, str]
    read_from_copies: Mapping[str, str]

    @property
    def ring_fill(self) -> float:
        """The part of the ring that is used, by slots or by bytes."""
        slots = self.ring.waiting / self.ring.slots
        return max(slots, min(1.0, self.ring.waiting_bytes / self.ring_bytes_max))

    @property
    def dead_threads(self) -> list[str]:
        return [name for name, state in self.threads.items() if not state.alive]
