"""Members with an agent each over one directory of logs, started and killed together, and their
clients."""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hazelcast

from tests.cluster.configuration import QUICK_MEMBER, member_config
from tests.cluster.network import Network, host
from tests.cluster.processes import Agent, Member
from tests.cluster.waiting import until
from tests.kit.ports import free_ports

CLIENTS = 300
"""How many clients a cluster keeps open. About 900 filled the heap of a member, which has 256
MiB."""
LIFETIME_TIMEOUT_S = 6
"""The agents' default: how long a new cluster waits for signs of life of the former one."""

logging.getLogger("hazelcast").setLevel(logging.CRITICAL)


def connect(
    members: Sequence[int | str], cluster_name: str, **more: Any
) -> hazelcast.HazelcastClient:
    """A client of members at these ports, or addresses. It gives up early: its own retries would
    hide what the cluster says."""
    options: dict[str, Any] = {
        "cluster_connect_timeout": 20,
        "invocation_timeout": 30,
        "statistics_enabled": False,
        **more,
    }
    addresses = [each if isinstance(each, str) else f"127.0.0.1:{each}" for each in members]
    return hazelcast.HazelcastClient(
        cluster_name=cluster_name, cluster_members=addresses, **options
    )


class Cluster:
    """Members with an agent each. Node i keeps its name, folder and clock over restarts; ports and
    the cluster id are new each time. `agents`: those of another cluster, which may run already.
    `network`: connections between members use its proxies; member number i of it is the one beside
    agent i. `properties`: Hazelcast's; in a value, `{agent}` is the endpoint of its agent.
    `sections`: further ones of its configuration. The agents' `start_policy` is the default one,
    except where fewer nodes are started than were used before. Then it is `partial`, and agents
    that this cluster starts do not wait for a former cluster either."""

    def __init__(
        self,
        folder: Path,
        classpath: str,
        maps: Callable[[str], Mapping[str, Any]],
        *,
        offsets_ms: Sequence[int] = (0, 0, 0),
        options: Sequence[str] = ("-Xmx256m",),
        url: str = "",
        agents: Sequence[Agent] = (),
        network: Network | None = None,
        properties: Mapping[str, str] | None = None,
        sections: Mapping[str, Any] | None = None,
        lifetime_timeout_s: float = LIFETIME_TIMEOUT_S,
        own_disks: bool = False,
        **settings: Any,
    ) -> None:
        self._network, self._properties = network, {**QUICK_MEMBER, **(properties or {})}
        self._sections = dict(sections or {})
        self.folder, self._options = folder, options
        self.classpath, self.maps = classpath, maps
        """Of the members that are started from now on."""
        self.url = url or (folder / "logs").as_uri()
        self.name = f"test-{random.randrange(10**9)}"
        self.agents = list(agents) or [
            Agent(
                folder,
                f"node-{number}",
                self.url,
                clock_offset_ms=offset,
                lifetime_timeout_s=lifetime_timeout_s,
                own_disk=own_disks,
                **settings,
            )
            for number, offset in enumerate(offsets_ms, 1)
        ]
        self._lifetime_timeout_s, self._own, self._used = (
            lifetime_timeout_s,
            not agents,
            set[Agent](),
        )
        self.members: list[Member] = []
        self.groups: Sequence[Path] = ()
        """Control groups: one for each member and the agent beside it."""
        self._lifetime = 0
        self._clients: list[hazelcast.HazelcastClient] = []

    def start(self, count: int, policy: str = "") -> None:
        """Start this many members, until joined. `policy`: the agents' `start_policy`."""
        self._lifetime += 1
        self.members = []
        waits = policy != "" or self._used <= set(self.agents[:count])
        self._used |= set(self.agents[:count])
        timeout_s = self._lifetime_timeout_s if waits or not self._own else 0
        for agent in self.agents:
            rule = policy or "wait-all" if waits and timeout_s else "partial"
            agent.configure(start_policy=rule, lifetime_timeout_s=timeout_s)
        for agent, group in zip(self.agents, self.groups, strict=False):
            agent.group = group
        for agent in self.agents[:count]:
            if not agent.running:
                agent.launch()
        self._new_member(0).launch()
        self.members[
            0
        ].wait()  # members that find no master at first wait for seconds until they elect one
        for number in range(1, count):
            self._new_member(number).launch()
        for agent in self.agents[:count]:
            agent.wait()
        for member in self.members[1:]:
            member.wait()
        until(
            f"{count} members are one cluster",
            lambda: all(member.ask("members") == count for member in self.members),
        )

    def _new_member(self, number: int) -> Member:
        (port,) = free_ports(1)
        name = f"{self.name}-member-{self._lifetime}-{len(self.members) + 1}"
        address = announced = f"127.0.0.1:{port}"
        if self._network is not None:
            address = f"{host(number + 1)}:{port}"
            announced = self._network.listen(number + 1, port)
        others = [member.announced for member in self.running] or [announced]
        endpoint = self.agents[number].endpoint
        config = member_config(
            self.name,
            port,
            others,
            self.maps(endpoint),
            {name: text.replace("{agent}", endpoint) for name, text in self._properties.items()},
            announced,
        )
        config["hazelcast"] |= self._sections
        member = Member(self.folder, name, port, config, self.classpath, self._options)
        member.node, member.address, member.announced = number + 1, address, announced
        member.group = self.groups[number] if self.groups else None
        self.members.append(member)
        return member

    def join(self, number: int) -> Member:
        """One more member, beside agent `number` (from 1), which is started if need be."""
        agent = self.agents[number - 1]
        self._used.add(agent)
        if not agent.running:
            agent.launch()
        before = len(self.running)
        member = self._new_member(number - 1)
        member.launch()
        agent.wait()
        member.wait()
        self.wait_safe(before + 1)
        return member

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.running]

    def wait_safe(self, count: int) -> None:
        """Wait until there are `count` members, and every partition has its owner and its
        backup."""

        def safe() -> bool:
            return all(
                member.ask("members") == count and member.ask("safe") for member in self.running
            )

        until(f"{count} members have all partitions and backups", safe, 90, 0.05)

    def client(self, **more: Any) -> hazelcast.HazelcastClient:
        return self.keep(connect([member.address for member in self.running], self.name, **more))

    def keep(self, client: hazelcast.HazelcastClient) -> hazelcast.HazelcastClient:
        """The client, which this cluster closes. Each open client takes memory of the members, so a
        condition that is polled uses the same client each time."""
        assert len(self._clients) < CLIENTS, f"{CLIENTS} clients are open: reuse one"
        self._clients.append(client)
        return client

    def kill_everything(self) -> None:
        """Send SIGKILL to all members and agents at once, with no shutdown of any kind."""
        children = [child for child in (*self.members, *self.agents) if child.running]
        for child in children:
            child.send(signal.SIGKILL)
        for child in children:
            child.kill()
        self.close_clients()

    def close_clients(self) -> None:
        clients, self._clients = self._clients, []
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda client: client.shutdown(), clients))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_everything()
