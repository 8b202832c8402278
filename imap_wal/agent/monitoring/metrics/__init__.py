"""The metrics of an agent; docs/hooks/metrics.py lists them on the page about monitoring."""

from __future__ import annotations

from imap_wal.agent.monitoring.metrics.agent import AGENT
from imap_wal.agent.monitoring.metrics.disks import DISKS
from imap_wal.agent.monitoring.metrics.maintenance import MAINTENANCE
from imap_wal.agent.monitoring.metrics.members import MEMBERS
from imap_wal.agent.monitoring.metrics.metric import AgentMetric
from imap_wal.agent.monitoring.metrics.reading import READING
from imap_wal.agent.monitoring.metrics.writing import WRITING

METRICS: tuple[AgentMetric, ...] = (
    *AGENT,
    *WRITING,
    *MAINTENANCE,
    *DISKS,
    *MEMBERS,
    *READING,
)
