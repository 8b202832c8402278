"""What a client of a cluster sees in a map."""

from __future__ import annotations

from typing import Any

from hazelcast.errors import HazelcastError

from tests.cluster.cluster import Cluster
from tests.cluster.waiting import until


def contents(cluster: Cluster, name: str) -> dict[Any, Any]:
    """All entries, when there are some. The map may not be available yet."""
    client = cluster.client()
    found: Any = until("the map is there", lambda: client.get_map(name).blocking().entry_set())
    return dict(found)


def refusal(cluster: Cluster, name: str) -> str:
    """The error of a client that uses the map; "" if there is none."""
    client = cluster.client()
    try:
        client.get_map(name).blocking().size()
    except HazelcastError as error:
        return str(error)
    else:
        return ""
    finally:
        client.shutdown()


def filled(cluster: Cluster, name: str, keys: int) -> dict[Any, Any]:
    """Start a member, fill the map, let a second member join, and change the map. Returns the
    entries."""
    cluster.start(1)
    entries = cluster.client().get_map(name).blocking()
    expected: dict[Any, Any] = {f"k{number}": f"first {number}" for number in range(keys)}
    entries.put_all(expected)
    cluster.join(2)
    for number in range(0, keys, 5):
        entries.remove(f"k{number}")
        del expected[f"k{number}"]
    entries.set("long", "lived", ttl=3600)
    expected["long"] = "lived"
    return expected


def refusal_for_a_disk(cluster: Cluster, name: str) -> str:
    """The error of a client that uses the map, when it names an own disk that cannot be read."""

    def naming() -> str:
        text = refusal(cluster, name)
        return text if "own disk of this node" in text else ""

    return until("the error names the disk", naming, pause=1)
