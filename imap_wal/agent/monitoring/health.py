"""Whether an agent is live, and whether it is ready: the two questions of orchestrators.

    live    all its threads run. If not, only a restart helps.
    ready   changes can be appended too, and the loop answers; so a member may use the agent, even
            while a new cluster waits for the log. It is not ready while connected members compare
            partitions with the log, because operations on these wait, but for at most the setting
            `ready_timeout_s`: they may wait for a node whose pod is started or updated only after
            this one is ready; nor if all connected members have lost the log to another cluster and
            must be restarted

A storage that is unavailable makes an agent unready, never dead: it recovers without a restart. The
texts have no detail that an error could contain; `imap-wal doctor --agent` shows those. It has the
same sentence for a state as `/readyz`, the status page and the agent's log.
"""

from __future__ import annotations

from imap_wal.agent.monitoring.snapshot import AgentSnapshot

STUCK_S = 10.0
"""A loop whose turn takes this long waits for the storage, and answers no request."""


def why_dead(now: AgentSnapshot) -> str:
    """Why the agent must be restarted; "" if it is live."""
    return f"threads have ended: {', '.join(now.dead_threads)}" if now.dead_threads else ""


def why_log_failed(now: AgentSnapshot) -> str:
    """Why nothing can be appended; "" if it can. Pages, probes, `doctor` and the agent's log use
    this sentence."""
    if now.fenced:
        return "another process has taken over the log"
    if now.failure and now.disk_full:
        return "the log failed because its disk is full; it is opened again when there is space"
    if now.failure:
        return "the log failed; it is opened again when the storage can be reached"
    return ""


def why_not_ready(now: AgentSnapshot) -> str:
    """Why operations cannot all be carried out now; "" if they can."""
    reasons = [why_dead(now)]
    if now.stopping:
        reasons.append("the agent is stopping")
    reasons.append(why_log_failed(now))
    if now.turn_seconds >= STUCK_S:
        reasons.append("the loop is waiting for the storage")
    if 0 < now.members == now.superseded:
        reasons.append("another cluster has claimed the log: restart the connected members")
    if now.settling and now.settling_running_s < now.ready_timeout_s:
        reasons.append(_settling(now))
    return "; ".join(reason for reason in reasons if reason)


def why_maps_wait(now: AgentSnapshot) -> str:
    """Why operations on maps wait although the agent is ready; "" if they do not. `/readyz` does
    not have these reasons: what ends such a wait may be a pod that is started after this one."""
    reasons = []
    if now.waiting_seconds:
        reasons.append("a new cluster waits for the log, and its maps with it")
    if now.merge_error:
        reasons.append("the logs cannot be merged, and members cannot load maps")
    elif now.members and not now.merged.merges and now.merge and now.merge.part < 1:
        reasons.append("maps wait until the logs are merged")
    if now.settling and now.settling_running_s >= now.ready_timeout_s:
        reasons.append(_settling(now))
    return "; ".join(reasons)


def _settling(now: AgentSnapshot) -> str:
    return f"members compare {now.settling} partitions with the log"
