"""Access to a cluster through hazelcast-python-client, as in an application."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from storage_backends.extras import needs


def connect(addresses: Sequence[str], cluster_name: str = "dev", timeout_s: float = 30) -> Any:
    """A connected client. Raises the client's own error if no member answers in time. Raises
    `MissingExtra` if a library is not installed."""
    with needs("hazelcast"):
        import hazelcast

    logging.getLogger("hazelcast").setLevel(logging.CRITICAL)
    return hazelcast.HazelcastClient(
        cluster_name=cluster_name,
        cluster_members=list(addresses),
        cluster_connect_timeout=timeout_s,
        smart_routing=True,
        statistics_enabled=False,
    )
