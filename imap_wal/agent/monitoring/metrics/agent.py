"""What an agent is, and how it is."""

from __future__ import annotations

import platform

from imap_wal.agent.monitoring.health import why_dead, why_not_ready
from imap_wal.agent.monitoring.metrics.metric import AgentMetric
from imap_wal.version import VERSION

AGENT: tuple[AgentMetric, ...] = (
    # What it is
    AgentMetric(
        "imap_wal_build_info",
        "info",
        "Versions of imap-wal and Python.",
        lambda now: {"version": VERSION, "python": platform.python_version()},
    ),
    AgentMetric(
        "imap_wal_agent_info",
        "info",
        "Namespace, cluster, node and durability of this agent, as labels.",
        lambda now: {
            "namespace": now.namespace,
            "cluster": now.cluster,
            "node": now.node,
            "durability": now.durability,
        },
    ),
    AgentMetric(
        "imap_wal_uptime_seconds",
        "gauge",
        "Seconds since the agent started.",
        lambda now: now.uptime_seconds,
    ),
    # Health
    AgentMetric(
        "imap_wal_live",
        "gauge",
        "1 if /livez answers 200: all threads run.",
        lambda now: float(not why_dead(now)),
    ),
    AgentMetric(
        "imap_wal_ready",
        "gauge",
        "1 if /readyz answers 200: changes can be appended, and no operation waits for the log.",
        lambda now: float(not why_not_ready(now)),
    ),
    AgentMetric(
        "imap_wal_log_failed",
        "gauge",
        "1 while the log has failed and has not been opened again.",
        lambda now: float(bool(now.failure)),
    ),
    AgentMetric(
        "imap_wal_fenced",
        "gauge",
        "1 if another process has taken over the log; the agent then ends.",
        lambda now: float(now.fenced),
    ),
    AgentMetric(
        "imap_wal_lease_age_seconds",
        "gauge",
        "Seconds since the lease of the node's lock was renewed; absent without a lease.",
        lambda now: now.lease_age_s,
    ),
    AgentMetric(
        "imap_wal_turn_seconds",
        "gauge",
        "How long the current turn of the agent's loop has lasted.",
        lambda now: now.turn_seconds,
    ),
    AgentMetric(
        "imap_wal_thread_alive",
        "gauge",
        "1 if the background thread runs.",
        lambda now: {name: float(state.alive) for name, state in now.threads.items()},
        "thread",
    ),
    AgentMetric(
        "imap_wal_thread_failing",
        "gauge",
        "1 if the last turn of the background thread failed; it tries again.",
        lambda now: {name: float(bool(state.error)) for name, state in now.threads.items()},
        "thread",
    ),
    AgentMetric(
        "imap_wal_thread_failures_total",
        "counter",
        "Turns of the background thread that failed.",
        lambda now: {name: state.failures for name, state in now.threads.items()},
        "thread",
    ),
)
