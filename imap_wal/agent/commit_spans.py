"""The spans of a commit, and its trace as an exemplar of the histogram of syncs."""

from __future__ import annotations

from collections.abc import Sequence

from imap_wal.agent.pending import Pending
from imap_wal.clock import Clock
from imap_wal.tracing import Tracer
from imap_wal.write.committer import Committer


def trace_commit(
    tracer: Tracer, committer: Committer, clock: Clock, began: float, pending: Sequence[Pending]
) -> None:
    """Trace a commit that ends now. `began`: when it began (monotonic seconds). `pending`: its
    appends. If it had a sync, the span has parts."""
    batches = [pending.batch for pending in pending if pending.batch is not None]
    if not batches:
        return
    now, (synced_at, sync_s) = clock.monotonic(), committer.counts.last_sync
    facts = {"requests": len(batches), "changes": sum(batch.count for batch in batches)}
    error = next((type(batch.error).__name__ for batch in batches if batch.error), "")
    parts: list[tuple[str, float]] = []
    if synced_at >= began:
        after = max(0.0, now - synced_at - sync_s)
        parts = [("append", synced_at - began), ("sync", sync_s), ("acknowledge", after)]
    trace_id = tracer.ended("commit", now - began, facts, parts, error)
    if trace_id and parts:
        committer.counts.exemplify_sync(trace_id, clock.now_ms() / 1000)
