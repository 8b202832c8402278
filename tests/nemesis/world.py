"""Three machines, each a member and its agent, a network between the members, disks that can be
filled, cut off and lost; what can be done to them, and how they are repaired."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hazelcast

from imap_wal.context import open_context
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.local_cluster import jars
from tests.cluster.cluster import LIFETIME_TIMEOUT_S, Cluster, connect
from tests.cluster.configuration import logged_map
from tests.cluster.network import QUICK_LOSS, Network
from tests.cluster.processes import ROOT, Agent, Child, Member
from tests.cluster.waiting import until
from tests.nemesis.clients import Callers, History, Key, told_apart
from tests.nemesis.disks import Disks
from tests.nemesis.storage import SHARED, OwnDisk, Root, Storage, fill
from tests.nemesis.together import CLEARED, DESTROYED, EMPTIED_KEYS, GROUPS, TRANSACTED, with_groups

MACHINES = (1, 2, 3)
MAPS = tuple(f"nemesis-{number}" for number in range(4))
EVICTED = MAPS[-1]
"""Its keys are also evicted from memory, so it is read key by key: queries see only what is in
memory."""
KEYS = tuple(Key(map, f"k{number}") for map in MAPS for number in range(25))
COLD = "nemesis-cold"
COLD_KEYS = tuple(Key(COLD, f"k{number}") for number in range(150))
"""Seldom written: their newest changes are old, so they are lost with an old part of a log."""
ALL_KEYS = (*KEYS, *COLD_KEYS, *EMPTIED_KEYS, *GROUPS)
"""All keys. Those of operations on many keys are left out if Hazelcast has no map store."""
# Small, so that a restore reads archives, sealed segments and an unfinished one.
SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 18, "max_total_wal_size": 1 << 20}
PROPERTIES = {
    **QUICK_LOSS,
    # Otherwise Hazelcast answers reads from a former owner while a partition moves, with or without
    # a log.
    "hazelcast.partition.migration.stale.read.disabled": "true",
}
WHOLE_S = 90.0
SLOW_S = 15.0
"""After this time, the run records what the members wait for."""


class NoAgent(Agent):
    """In place of an agent, for members without the plug-in."""

    def launch(self, module: str = "") -> None: ...

    def wait(self, seconds: float = 60) -> None: ...


class NotWhole(AssertionError):
    """The cluster does not work again, although all faults have ended."""


class World:
    """`say` gets what was done, a line each. `bare`: Hazelcast without a map store, for
    comparison. `defect`: one of `tests.nemesis.defects`, which all agents have."""

    def __init__(
        self,
        folder: Path,
        classpath: str,
        say: Callable[[str], None],
        *,
        bare: bool = False,
        storage: Storage = SHARED,
        defect: str = "",
    ) -> None:
        self.folder, self._say, self.bare, self.storage = folder, say, bare, storage
        self.evicted = "" if bare else EVICTED
        self.keys = KEYS if bare else ALL_KEYS
        self._maps = MAPS if bare else (*MAPS, COLD, CLEARED, DESTROYED, TRANSACTED)
        self.root = Root(folder / "logs")
        self.logs = self.root.path
        self.network, self.history = Network(), History()
        agents = self._new_agents(defect)
        endpoints = [each.endpoint for each in agents]
        maps: Callable[[str], Mapping[str, Any]] = (
            (lambda _: {"default": {}})
            if bare
            else (lambda own: {"default": logged_map(own, storage.properties(endpoints))})
        )
        self.cluster = Cluster(
            folder,
            classpath,
            maps,
            url=self.logs.as_uri(),
            agents=agents,
            network=self.network,
            properties=PROPERTIES,
        )
        self._beginning = time.monotonic()

    def _new_agents(self, defect: str) -> list[Agent]:
        """An agent for each machine, with its disk."""
        names = [f"node-{number}" for number in MACHINES]
        own = self.storage.own_disks
        each_own = [(name, OwnDisk(self.folder, name, self.logs)) for name in names if own]
        kind = NoAgent if self.bare else Agent
        agents = []
        for name in names:
            disk = dict(each_own).get(name)
            agent = kind(
                self.folder,
                name,
                (disk.way if disk else self.logs).as_uri(),
                lifetime_timeout_s=LIFETIME_TIMEOUT_S,
                own_disk=own,
                recovery_policy="full",
                **SETTINGS,
            )
            agent.configure(**(disk.settings if disk else {}))
            agent.defect = defect
            agents.append(agent)
        log = ClusterLog(open_context(self.logs.as_uri()), "default", "dev")
        self.disks = Disks(each_own, agents, log, self.say)
        return agents

    def __enter__(self) -> World:
        return self

    def __exit__(self, *error: object) -> None:
        self.thaw()
        self.cluster.kill_everything()
        self.network.close()
        self.disks.close()
        self.root.close()

    def say(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._beginning:7.1f} s  {text}")

    # ---- what there is ----

    def agent(self, machine: int) -> Agent:
        return self.cluster.agents[machine - 1]

    def member(self, machine: int) -> Member | None:
        """The one that runs there, or the last that did."""
        return next((each for each in reversed(self.cluster.members) if each.node == machine), None)

    def runs(self, machine: int) -> bool:
        member = self.member(machine)
        return member is not None and member.running

    @property
    def folders(self) -> list[Path]:
        """Where the log is."""
        return [self.logs, *self.disks.folders]

    def client(self, **more: Any) -> hazelcast.HazelcastClient:
        return self.cluster.client(cluster_connect_timeout=20, **more)

    def connect(self, number: int, direct: bool) -> hazelcast.HazelcastClient:
        """The client of a caller. A `direct` one knows one member at first, and sends everything
        through one."""
        running = [each.address for each in self.cluster.running]
        if not running:
            raise ConnectionError("no member runs")
        chosen = [running[number // 2 % len(running)]] if direct else running
        return connect(
            chosen,
            self.cluster.name,
            cluster_connect_timeout=3,
            smart_routing=not direct,
            connection_timeout=3,
        )

    @contextlib.contextmanager
    def callers_of(self, member: Member, seed: int) -> Iterator[None]:
        """Two more callers meanwhile, which know this member only."""

        def to_it(number: int, direct: bool) -> hazelcast.HazelcastClient:
            return connect([member.address], self.cluster.name, cluster_connect_timeout=3)

        callers = Callers(
            self.history,
            to_it,
            KEYS,
            seed=seed,
            count=2,
            prefix=f"at{member.node}-{self.cluster.members.index(member)}-",
            evicted=self.evicted,
        )
        callers.resume()
        try:
            yield
        finally:
            callers.pause()
            callers.stop()

    # ---- faults ----

    def children(self, machine: int, what: str) -> list[Child]:
        """`what`: "member", "agent" or "machine"."""
        member = self.member(machine)
        found: list[Child] = [member] if member is not None and what != "agent" else []
        return [
            each
            for each in [*found, *([self.agent(machine)] if what != "member" else [])]
            if each.running
        ]

    def kill(self, machine: int, what: str) -> None:
        self.say(f"kill {what} {machine}")
        victims = self.children(machine, what)
        for child in victims:
            child.send(signal.SIGKILL)
        for child in victims:
            child.kill()

    def freeze(self, machine: int, what: str) -> None:
        self.say(f"freeze {what} {machine}")
        for child in self.children(machine, what):
            child.send(signal.SIGSTOP)

    def thaw(self) -> None:
        for child in [*self.cluster.members, *self.cluster.agents]:
            if child.running:
                child.send(signal.SIGCONT)

    def leave(self, machine: int) -> None:
        self.say(f"member {machine} leaves")
        member = self.member(machine)
        assert member is not None
        member.leave()

    def join(self, machine: int) -> None:
        self.say(f"machine {machine} joins")
        self.cluster.join(machine)

    def launch(self, machine: int) -> Member:
        """A member without an agent being started or waited for."""
        self.say(f"member {machine} starts")
        member = self.cluster._new_member(machine - 1)
        member.launch()
        return member

    def split(self, left: Sequence[int], right: Sequence[int]) -> None:
        self.say(f"split {left} | {right}")
        self.network.split(left, right)

    def set_clock(self, machine: int, offset_ms: int) -> None:
        """Set the clock of the agent, which is started again with it."""
        self.say(f"the clock of agent {machine} is {offset_ms / 1000:+.0f} s off")
        agent = self.agent(machine)
        agent.kill()
        agent.configure(clock_offset_ms=offset_ms)
        agent.start()

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """If no small disk could be mounted, the size of a file is limited instead: the agents can
        write only the beginning of each."""
        self.say("the disk is full" if self.root.is_disk else "the agents may not write")
        filler = self.logs / "filler"
        if self.root.is_disk:
            fill(filler)
        else:
            self._limit_files(1)
        try:
            yield
        finally:
            if self.root.is_disk:
                filler.unlink()
            else:
                self._limit_files(resource.RLIM_INFINITY)
            self.say("there is room again")

    def _limit_files(self, size: int) -> None:
        for agent in self.cluster.agents:
            if agent.running:
                resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def rewrite(self) -> str:
        """Rewrite the log; with own disks, the part that was archived and uploaded."""
        more = ["--partial"] if self.storage.own_disks else []
        return self.command("rewrite", *more, self.logs.as_uri())

    def prune(self) -> str:
        return self.command("prune", "--yes", self.logs.as_uri())

    def command(self, *arguments: str) -> str:
        """Run a command of imap-wal; return its output."""
        self.say("imap-wal " + " ".join(arguments))
        run = subprocess.run(
            [sys.executable, "-m", "rewrite_cli.cli", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return f"exit code {run.returncode}: {(run.stdout + run.stderr).strip()[-400:]}"

    # ---- recovery ----

    def start(self, count: int = len(MACHINES)) -> None:
        self.say(f"start {count} machines")
        self.cluster.start(count)

    def heal(self) -> None:
        """End the faults, start what is missing, and wait until the cluster is one again."""
        self.say("all faults end")
        self.network.heal()
        self.thaw()
        whole = threading.Event()
        threading.Thread(target=self._dump_threads, args=(whole,), daemon=True).start()
        try:
            for machine in MACHINES:
                if not self.agent(machine).running:
                    self.agent(machine).launch()
            for machine in MACHINES:
                self.agent(machine).wait()
            alive = [machine for machine in MACHINES if self.runs(machine)]
            self._wait_safe(len(alive))
            for machine in MACHINES:
                if machine not in alive:
                    self.join(machine)
            self._wait_safe(len(MACHINES))
            self.disks.wait_uploaded()
        except Exception as error:
            raise NotWhole(f"{type(error).__name__}: {error} {error.__cause__ or ''}") from error
        finally:
            whole.set()
        self.say("the cluster is whole")

    def _dump_threads(self, whole: threading.Event) -> None:
        """Write what the threads of the members do to `threads-*.txt`, at most three times, if the
        cluster takes long to become whole."""
        jcmd = Path(jars.java()).resolve().with_name("jcmd")
        for number, pause in enumerate((SLOW_S, 5.0, 5.0), 1):
            if whole.wait(pause):
                return
            for member in self.cluster.running:
                with contextlib.suppress(OSError, subprocess.SubprocessError):
                    run = subprocess.run(
                        [jcmd, str(member.pid), "Thread.print"],
                        capture_output=True,
                        timeout=20,
                        check=False,
                    )
                    name = f"threads-{member.name}-{time.time():.0f}.txt"
                    (self.folder / name).write_bytes(run.stdout)
            self.say(f"threads of the members are in {self.folder}, {number}")

    def _wait_safe(self, count: int) -> None:
        """As `Cluster.wait_safe`, for halves that first have to find each other."""

        def safe() -> bool:
            return all(
                member.ask("members") == count and member.ask("safe")
                for member in self.cluster.running
            )

        until(f"{count} members have all partitions and backups", safe, WHOLE_S, 0.1)

    def contents(self) -> dict[Key, Any]:
        """All maps as a query sees them, and the entries of `evicted`. A group of keys that
        transactions change has one value."""

        def of(name: str) -> dict[Key, Any]:
            def read() -> list[dict[Key, Any]]:
                entries = client.get_map(name).blocking()
                if name == self.evicted:
                    found = entries.get_all([key.name for key in KEYS if key.map == name])
                    pairs = list(found.items())
                else:
                    pairs = entries.entry_set()
                return [{Key(name, key): told_apart(value) for key, value in pairs}]

            return until(f"{name} can be read", read, 60, 0.5)[0]

        client = self.client()
        try:
            with ThreadPoolExecutor(len(self._maps)) as pool:
                every = pool.map(of, self._maps)
                return with_groups({key: value for found in every for key, value in found.items()})
        except Exception as error:
            raise NotWhole(f"{type(error).__name__}: {error} {error.__cause__ or ''}") from error
        finally:
            client.shutdown()

    def kill_everything(self) -> None:
        self.say("kill everything")
        self.thaw()
        self.cluster.kill_everything()

    def restart(self, how: str, rng: random.Random) -> None:
        """Everything, which was killed. `how`: "as before", "in other order", "fewer" or "one by
        one"."""
        self.say(f"restart {how}")
        self.network.heal()
        if how == "in other order":
            self._shuffle(rng)
        self.cluster.start({"fewer": 2, "one by one": 1}.get(how, len(MACHINES)))
        self.disks.noticed()

    def complete(self) -> None:
        """Start the machines that a restart left out."""
        for machine in MACHINES:
            if not self.runs(machine):
                self.join(machine)
        self._wait_safe(len(MACHINES))

    def _shuffle(self, rng: random.Random) -> None:
        """Machines are started by their place, so new places are drawn; machine 1 is then another
        one."""
        rng.shuffle(self.cluster.agents)

    @property
    def restarts(self) -> Sequence[str]:
        """The ways in which everything can be restarted now. With own disks, the disk of a machine
        that is left out cannot be read: so at most one is left out, and only if other logs have its
        changes."""
        if not self.storage.own_disks:
            return RESTARTS
        fewer = self.storage.copies > 1 and self.disks.is_loss_noticed
        return RESTARTS[:3] if fewer else RESTARTS[:2]


RESTARTS = ("as before", "in other order", "fewer", "one by one")
