"""The faults of own disks. Where the documentation promises that nothing is lost and nothing
refused, a refusal is a failure. It promises less if two disks are lost at once, or one disk while
another one is away: the episodes of these accept a refusal (`Disks.start_after_loss`)."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from random import Random

from tests.nemesis.episode import Episodes, some
from tests.nemesis.world import MACHINES, World

DISK_EPISODES = Episodes()
episode = DISK_EPISODES.episode

# ---- one disk is lost: with copies, nothing is lost or refused ----


def _lose(world: World, rng: Random, machine: int) -> None:
    """The agent of a machine, or the machine, and its disk."""
    world.kill(machine, rng.choice(["agent", "machine"]))
    world.disks.lose(world.agent(machine))


@episode(bare=False, disks=True, copies=2)
def lose_disk(world: World, rng: Random) -> None:
    """The node returns with an empty disk, at once or later. Sometimes it is first forgotten."""
    machine = some(rng)
    world.disks.renew_promises()
    _lose(world, rng, machine)
    time.sleep(rng.choice([0, rng.uniform(0, 6)]))
    if rng.random() < 0.4:
        # Its uploads may be the only copy of entries of another lost disk.
        world.say(world.rewrite())
        node = world.agent(machine).node
        forget = ("forget-node", world.logs.as_uri(), "--node", node, "--lose", "--yes")
        said = world.command(*forget)
        assert said.startswith("exit code 0"), said
        time.sleep(rng.uniform(0, 2))
    world.agent(machine).start()


@episode(bare=False, disks=True, copies=2)
def lose_disk_beside_maintenance(world: World, rng: Random) -> None:
    def maintain() -> None:
        for each in (world.rewrite, world.prune, world.rewrite):
            world.say(each())

    world.disks.renew_promises()
    maintaining = threading.Thread(target=maintain, daemon=True)
    maintaining.start()
    time.sleep(rng.uniform(0, 3))
    machine = some(rng)
    _lose(world, rng, machine)
    time.sleep(rng.uniform(0, 2))
    world.agent(machine).start()
    maintaining.join(300)


@episode(bare=False, disks=True, copies=2)
def lose_disk_without_root(world: World, rng: Random) -> None:
    """The agent cannot upload, and then its disk is lost."""
    machine = some(rng)
    agent = world.agent(machine)
    world.disks.renew_promises()
    with world.disks.of(agent).cut():
        world.say(f"{agent.node} cannot reach the root")
        time.sleep(rng.uniform(0, 6))
        _lose(world, rng, machine)
    agent.start()


# ---- more than one disk: nothing is lost without a refusal ----


@episode(bare=False, disks=True)
def lose_two_disks(world: World, rng: Random) -> None:
    """At the same time."""
    world.disks.renew_promises()
    machines = rng.sample(MACHINES, 2)
    if rng.random() < 0.5:
        world.kill_everything()
    for machine in machines:
        world.kill(machine, "machine")
    agents = [world.agent(machine) for machine in machines]
    kept = [world.disks.lose(agent) for agent in agents]
    time.sleep(rng.choice([0, rng.uniform(0, 4)]))
    for agent, copy in zip(agents, kept, strict=True):
        world.disks.start_after_loss(agent, copy, rng)
    _restarted(world)


@episode(bare=False, disks=True)
def lose_disk_while_another_is_away(world: World, rng: Random) -> None:
    """The other one returns before or after the node of the lost disk does."""
    away, lost = rng.sample(MACHINES, 2)
    world.disks.renew_promises()
    if rng.random() < 0.5:
        world.freeze(away, "agent")
        time.sleep(rng.uniform(0, 0.6))
    world.kill(away, rng.choice(["agent", "machine"]))
    time.sleep(rng.choice([0, rng.uniform(0, 5)]))
    world.kill(lost, rng.choice(["agent", "machine"]))
    kept = world.disks.lose(world.agent(lost))
    returns_first = rng.random() < 0.5
    if returns_first:
        world.agent(away).start()
    world.disks.start_after_loss(world.agent(lost), kept, rng)
    if not returns_first:
        time.sleep(rng.uniform(0, 2))
        world.agent(away).start()
    _restarted(world)


def _restarted(world: World) -> None:
    """Restart everything after a loss was accepted: members may have the lost entries in memory."""
    if world.disks.given_up:
        world.kill_everything()
    if not world.cluster.running:
        world.start()


# ---- disks that are older than the log ----


@episode(bare=False, disks=True, copies=2)
def older_disk(world: World, rng: Random) -> None:
    """An earlier state of a disk, as a snapshot of a virtual machine has it. If it is refused, the
    agent gets an empty one instead."""
    machine = some(rng)
    agent = world.agent(machine)
    world.disks.renew_promises()
    kept = world.disks.copied(agent)
    time.sleep(rng.uniform(0.2, 6))
    world.kill(machine, "agent")
    world.disks.put(agent, kept)
    if not world.disks.start(agent):
        world.disks.lose(agent)
        agent.start()


@episode(bare=False, disks=True, copies=2)
def lost_disk_returns(world: World, rng: Random) -> None:
    """After the node has continued with an empty one. If the disk is refused, the newer one is
    attached again."""
    machine = some(rng)
    agent = world.agent(machine)
    world.disks.renew_promises()
    world.kill(machine, "agent")
    former = world.disks.lose(agent)
    agent.start()
    time.sleep(rng.uniform(0, 5))
    world.kill(machine, rng.choice(["agent", "machine"]))
    newer = world.disks.copied(agent)
    world.disks.put(agent, former)
    if not world.disks.start(agent):
        world.disks.put(agent, newer)
        agent.start()


# ---- the root, full disks, slow agents ----


@episode(bare=False, disks=True)
def without_root(world: World, rng: Random) -> None:
    """Some agents cannot reach the root for a while, so they acknowledge and upload nothing."""
    with ExitStack() as cut:
        for machine in rng.sample(MACHINES, rng.choice([1, 1, 2, 3])):
            world.say(f"agent {machine} cannot reach the root")
            cut.enter_context(world.disks.of(world.agent(machine)).cut())
        time.sleep(rng.uniform(1, 10))
    world.say("the root can be reached")


@episode(bare=False, disks=True)
def full_own_disk(world: World, rng: Random) -> None:
    machine = some(rng)
    world.say(f"the own disk of machine {machine} is full")
    with world.disks.of(world.agent(machine)).full():
        time.sleep(rng.uniform(2, 10))


@episode(bare=False)
def slow_agents(world: World, rng: Random) -> None:
    """Agents that stop for moments: sometimes another one takes their place."""
    for _ in range(rng.randint(4, 10)):
        world.freeze(some(rng), "agent")
        time.sleep(rng.choice([rng.uniform(0.05, 0.4), rng.uniform(0.4, 2.5)]))
        world.thaw()
        time.sleep(rng.uniform(0, 0.6))
