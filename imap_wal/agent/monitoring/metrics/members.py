"""Connections, the cluster that has the log, and its members."""

from __future__ import annotations

from imap_wal.agent.monitoring.metrics.metric import AgentMetric

MEMBERS: tuple[AgentMetric, ...] = (
    AgentMetric(
        "imap_wal_connections",
        "gauge",
        "Open connections of members and clients.",
        lambda now: now.connections.open,
    ),
    AgentMetric(
        "imap_wal_connections_max",
        "gauge",
        "The limit of connections.",
        lambda now: now.connections.most,
    ),
    AgentMetric(
        "imap_wal_connections_refused_total",
        "counter",
        "Connections that were closed: too many, against the protocol, or with a revoked key.",
        lambda now: now.connections.refused,
    ),
    AgentMetric(
        "imap_wal_connections_revoked_total",
        "counter",
        "Connections that were closed because their keys were revoked.",
        lambda now: now.revoked,
    ),
    AgentMetric(
        "imap_wal_peers_refused_total",
        "counter",
        "Peers that were not admitted, because of their user or key.",
        lambda now: now.peers_refused,
    ),
    AgentMetric(
        "imap_wal_errors_total",
        "counter",
        "Requests that were answered with an error, by its code.",
        lambda now: now.errors,
        "code",
    ),
    AgentMetric(
        "imap_wal_incarnation",
        "gauge",
        "The incarnation of the cluster that has the log; 0: none has claimed it.",
        lambda now: now.incarnation,
    ),
    AgentMetric(
        "imap_wal_cluster_alive",
        "gauge",
        "1 if members of the cluster that has the log may be alive.",
        lambda now: float(now.alive),
    ),
    AgentMetric(
        "imap_wal_nodes_without_agent",
        "gauge",
        "Nodes of this log without a running agent: the next start of all members waits for them.",
        lambda now: len(now.absent),
    ),
    AgentMetric(
        "imap_wal_clock_skew_seconds",
        "gauge",
        "By how much this agent's clock is ahead of another agent's or the storage's, the largest "
        "difference; negative: behind.",
        lambda now: now.clock_skew_ms / 1000,
    ),
    AgentMetric(
        "imap_wal_clocks_differ",
        "gauge",
        "1 if clocks differ by more than clock_skew_max_s: restores keep expired entries.",
        lambda now: float(bool(now.clock_doubt)),
    ),
    AgentMetric(
        "imap_wal_start_waiting_seconds",
        "gauge",
        "How long a new cluster has waited for the log here; 0: none waits.",
        lambda now: now.waiting_seconds,
    ),
    AgentMetric(
        "imap_wal_superseded_members",
        "gauge",
        "Connected members that have lost the log to another cluster, and must be restarted.",
        lambda now: now.superseded,
    ),
    AgentMetric(
        "imap_wal_settling_partitions",
        "gauge",
        "Partitions that connected members still compare with the log; operations on them wait.",
        lambda now: now.settling,
    ),
    AgentMetric(
        "imap_wal_settling_seconds_total",
        "counter",
        "Seconds in which partitions were being compared with the log.",
        lambda now: now.settling_seconds,
    ),
)
