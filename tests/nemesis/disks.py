"""What can happen to the own disks of a world's agents, and what an operator then does, as
docs/how-to/local-disks.md says.

refusal    an agent that does not start because of its disk names the node and the segments, or the
           files. Any other text is a finding, and so is a loss without a refusal
found      the disk that was lost is attached again: then nothing may be lost
given up   the agent starts with recovery_policy partial: entries that only lost disks had are lost,
           and the operator accepts it
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from imap_wal.read.cluster import ClusterLog
from tests.cluster.processes import Agent
from tests.cluster.waiting import Ended, until
from tests.nemesis.storage import OwnDisk

UPLOADED_S = 120.0
REFUSALS = (
    r"node 'node-\d': its disk is new or another one: .* all entries in segments \d+ to \d+",
    r"the segment \S+ differs from its uploaded copy \S+: ",
    r"\S+\.wal at byte \d+: .*segment \d+ is missing: the log continues after it",
    r"node 'node-\d': \S+/wal should have the segments of log \S+, but has ",
)
"""The texts of agents that refuse their disks."""


class NotDocumented(AssertionError):
    """An agent did not start, and did not say why as the documentation does."""


class Disks:
    """`agents`: all of the world. `disks`: by node. `log`: the cluster's, as the root has it."""

    def __init__(
        self,
        disks: Sequence[tuple[str, OwnDisk]],
        agents: Sequence[Agent],
        log: ClusterLog,
        say: Callable[[str], None],
    ) -> None:
        self._disks, self._agents, self._log, self._say = dict(disks), agents, log, say
        self.refusals = 0
        """Starts that were refused, since `begin`."""
        self.given_up = False
        """Whether anything was given up since `begin`: then only the remaining entries count."""
        self._losses_known = 0

    def begin(self) -> None:
        """An episode begins."""
        self.refusals, self.given_up = 0, False

    @property
    def folders(self) -> list[Path]:
        return [disk.disk for disk in self._disks.values()]

    def of(self, agent: Agent) -> OwnDisk:
        return self._disks[agent.node]

    def close(self) -> None:
        for disk in self._disks.values():
            disk.close()

    # ---- lost, and what follows ----

    def lose(self, agent: Agent) -> Path:
        """The disk of an agent that does not run. Returns a copy of it, for `put`."""
        self._say(f"the disk of {agent.node} is lost")
        kept = self.of(agent).copied()
        self.of(agent).empty()
        return kept

    def copied(self, agent: Agent) -> Path:
        self._say(f"the disk of {agent.node} is copied")
        return self.of(agent).copied()

    def put(self, agent: Agent, kept: Path) -> None:
        self._say(f"{kept.name} is put on the disk of {agent.node}")
        self.of(agent).put(kept)

    def start(self, agent: Agent) -> bool:
        """Whether the agent starts. Raises `NotDocumented` if it refuses with a text that is not
        documented."""
        said = len(agent.log.read_bytes()) if agent.log.exists() else 0
        agent.launch()
        try:
            agent.wait()
        except Ended:
            text = agent.log.read_bytes()[said:].decode(errors="replace")
            if not any(re.search(each, text) for each in REFUSALS) or "Traceback" in text:
                raise NotDocumented(f"{agent.name} did not start: {text[-1500:]}") from None
            self.refusals += 1
            self._say(f"{agent.name} refuses its disk: {text.strip()[-300:]}")
            return False
        return True

    def start_after_loss(self, agent: Agent, kept: Path, rng: Random) -> None:
        """Start an agent with an empty disk. If it refuses, either the lost disk is attached again,
        or its entries are given up."""
        if self.start(agent):
            return
        if rng.random() < 0.5:
            self.put(agent, kept)
            agent.start()
        else:
            self.give_up(agent)

    def give_up(self, agent: Agent) -> None:
        self._say(f"{agent.node} gives up what it lost")
        self.given_up = True
        agent.configure(recovery_policy="partial")
        agent.start()
        agent.configure(recovery_policy="full")

    # ---- when a disk may be lost ----

    def wait_uploaded(self) -> None:
        """Wait until everything that was written before is in the root."""
        if not self._disks:
            return
        began = time.monotonic()

        def uploaded() -> bool:
            stats = [agent.stat(2000) for agent in self._agents if agent.running]
            waiting = [stat["upload"] if stat else None for stat in stats]
            return all(
                each is not None
                and (not each["bytes"] or each["seconds"] < time.monotonic() - began)
                for each in waiting
            )

        until("all segments are uploaded", uploaded, UPLOADED_S, 0.2)

    @property
    def losses(self) -> int:
        """As the cluster's manifest counts them."""
        return sum(self._log.manifest().losses.values())

    @property
    def is_loss_noticed(self) -> bool:
        """Whether every member is known to have noticed all losses: then another disk may be lost
        without a refusal."""
        return self.losses == self._losses_known

    def noticed(self) -> None:
        """All members have said hello since the last loss."""
        self._losses_known = self.losses

    def renew_promises(self) -> None:
        """Restart the agents, one after the other, if a loss may not have been noticed by members
        that append to other agents only (docs/limits.md, Copies)."""
        if not self.is_loss_noticed:
            now = self.losses
            self._say("the agents are restarted, one after the other")
            writers = {
                each: until(f"{each.name} has a member", each.writers) for each in self._agents
            }
            for agent in self._agents:
                agent.stop(60)
                agent.start()
            for agent, before in writers.items():
                until(f"{agent.name} has its members again", partial(_has, agent, before))
            self._losses_known = now
        self.wait_uploaded()


def _has(agent: Agent, members: frozenset[str]) -> bool:
    return members <= agent.writers()
