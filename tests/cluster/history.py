"""What happened to the cluster before it was killed: writers that tests register, and what each of
them expects afterwards.

@written                    runs once, in the first lifetime of the cluster, together with the other
                            writers; returns what its test needs
@written(last=True)         runs alone, after those
now.written("name")         what that writer returned; raises what it raised
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import hazelcast
from hazelcast.errors import HazelcastError
from hazelcast.proxy.map import BlockingMap

from imap_wal.context import open_context
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.values import CLIENT_OPTIONS

Writer = Callable[["Scene"], Any]
FIRST: dict[str, Writer] = {}
LAST: dict[str, Writer] = {}

# Two agents' clocks are ten minutes apart; the third's is right.
OFFSETS_MS = (-300_000, 300_000, 0)
# Small, so that a restore reads archives, sealed segments and an unfinished one.
# Members move each partition of each map when one joins: there are eighty maps.
PROPERTIES = {
    "hazelcast.partition.count": "23",
    "imap-wal.agent": "{agent}",
    "imap-wal.transient-maps": "forgetful-*",
    "imap-wal.durable-queues": "jobs*",
    "imap-wal.durable-ringbuffers": "events",
    "imap-wal.durable-topics": "news",
}
SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 20, "max_total_wal_size": 3 << 20}


def written(function: Writer | None = None, *, last: bool = False) -> Any:
    def register(writer: Writer) -> Writer:
        (LAST if last else FIRST)[writer.__name__] = writer
        return writer

    return register if function is None else register(function)


def maps(endpoint: str) -> Mapping[str, Any]:
    """Every map is logged; some have more settings."""
    through = {"read-through": "true"}
    return {
        "default": logged_map(endpoint),
        "wild-*-card": logged_map(endpoint, backup_count=0),
        "through-*": logged_map(endpoint, through),
        "indexed-*": logged_map(endpoint, indexes=[{"type": "SORTED", "attributes": ["age"]}]),
        "offloaded-*": logged_map(endpoint, store={"offload": True}),
        "object-*": logged_map(endpoint, in_memory_format="OBJECT"),
        "short-lived-*": logged_map(endpoint, time_to_live_seconds=3600),
        "evicting-*": logged_map(
            endpoint,
            eviction={"eviction-policy": "LRU", "max-size-policy": "PER_NODE", "size": 542},
        ),
        "chunked-*": logged_map(endpoint, {"restore-chunk": "1000"}),
        "forgetful-*": {},
    }


@dataclass(repr=False)
class Scene:
    """A cluster in one of its lifetimes, and a client of it."""

    cluster: Cluster
    client: hazelcast.HazelcastClient

    def map(self, name: str) -> BlockingMap[Any, Any]:
        return self.client.get_map(name).blocking()

    def contents(self, name: str) -> dict[Any, Any]:
        return dict(self.map(name).entry_set())

    def expiry(self, name: str, key: Any) -> int:
        """Unix time in ms; 0: never."""
        view = self.map(name).get_entry_view(key)
        assert view is not None, f"{key} is not there"
        return 0 if view.expiration_time >= 2**62 else int(view.expiration_time)

    def data(self, value: Any) -> bytes:
        """The bytes of a value, as they are sent and logged."""
        return bytes(self.client._context.serialization_service.to_data(value).buffer)

    def log(self) -> ClusterLog:
        return ClusterLog(open_context(self.cluster.url), "default", "dev")

    def reads(self) -> int:
        return sum(agent.reads() for agent in self.cluster.agents if agent.running)


@dataclass(repr=False)
class History:
    """All writers have run, then everything was killed. `first_seen`: values that tests keep for
    the next lifetime."""

    cluster: Cluster
    results: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    log_bytes: int = 0
    first_seen: dict[str, Any] = field(default_factory=dict)

    def run(self, scene: Scene) -> None:
        with ThreadPoolExecutor(8) as pool:  # a map's first use waits; many wait together
            list(pool.map(lambda item: self._run(scene, *item), FIRST.items()))
        for name, writer in LAST.items():
            self._run(scene, name, writer)

    def _run(self, scene: Scene, name: str, writer: Writer) -> None:
        try:
            self.results[name] = writer(scene)
        except Exception as error:
            self.errors[name] = error


@dataclass(repr=False)
class Now(Scene):
    """After a restart. `bytes_read` are the agents' while all maps were loaded; `members`: the
    number of members."""

    history: History
    members: int = 0
    bytes_read: list[int] = field(default_factory=list)

    def written(self, name: str) -> Any:
        if name in self.history.errors:
            raise AssertionError(f"{name} failed before the kill") from self.history.errors[name]
        return self.history.results[name]


def first_lifetime(cluster: Cluster) -> Iterator[History]:
    """Start, run all writers, kill."""
    history = History(cluster)
    with cluster:
        cluster.start(2)
        history.run(Scene(cluster, cluster.client(**CLIENT_OPTIONS)))
        cluster.kill_everything()
        history.names = set(log_maps(cluster.url))
        history.log_bytes = sum(
            path.stat().st_size for path in (cluster.folder / "logs").rglob("*") if path.is_file()
        )
        yield history


def later_lifetime(history: History, members: int) -> Iterator[Now]:
    """Start again from the log, load all maps."""
    cluster = history.cluster
    cluster.start(members)
    try:
        scene = Now(cluster, cluster.client(**CLIENT_OPTIONS), history, members)
        agents = [agent for agent in cluster.agents if agent.running]
        before = [agent.bytes_read() for agent in agents]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: _load(scene, name), sorted(history.names)))
        scene.bytes_read = [
            agent.bytes_read() - already for agent, already in zip(agents, before, strict=True)
        ]
        yield scene
    finally:
        cluster.kill_everything()


def _load(scene: Scene, name: str) -> None:
    with contextlib.suppress(HazelcastError):  # the test of that map reports it
        scene.map(name).size()


def log_maps(url: str) -> list[str]:
    view = log_view(url)
    try:
        return view.maps()
    finally:
        view.close()


def log_view(url: str, cluster: str = "dev") -> MaterializedView:
    """The contents of the log, read by the test itself."""
    view = MaterializedView(ClusterLog(open_context(url), "default", cluster), Settings())
    view.catch_up()
    return view
