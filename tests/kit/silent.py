"""Clusters with an agent that does not answer."""

from __future__ import annotations

from imap_wal.entry import KEY, VALUE
from tests.cluster.cluster import Cluster
from tests.cluster.history import log_view
from tests.cluster.processes import Agent
from tests.cluster.waiting import until

SILENT = "tests.cluster.silent_agent"


def newest(cluster: Cluster, name: str) -> dict[str, str]:
    """The contents of a map of strings in the log, read by the test itself."""
    view = log_view(cluster.url)
    try:
        return {
            _text(row[KEY]): _text(row[VALUE])
            for rows in view.rows(name)
            for row in rows
            if row[VALUE] is not None
        }
    finally:
        view.close()


def _text(data: bytes) -> str:
    """The text in Hazelcast's Data: partition hash, type, length (4 bytes each), UTF-8."""
    return data[12:].decode()


def wait_taken(agent: Agent, before: int) -> None:
    """Wait until one more change is durable: an agent commits what it received before it answers
    the next request."""
    until("the agent accepts a change", lambda: (agent.stat() or {}).get("appends", 0) > before)
    assert agent.stat(5000)
