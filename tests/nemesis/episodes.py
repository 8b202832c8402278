"""The faults of the cluster, one or a few at a time. `World.heal` ends the faults of an
episode. Its random choices come from the seed."""

from __future__ import annotations

import threading
import time
from random import Random

from tests.nemesis.disk_episodes import DISK_EPISODES
from tests.nemesis.episode import Episodes, some
from tests.nemesis.world import MACHINES, World

CLOCK_MS = 600_000
EPISODES = Episodes()
episode = EPISODES.episode


# ---- killed ----


@episode()
def kill_member(world: World, rng: Random) -> None:
    world.kill(some(rng), "member")
    time.sleep(rng.uniform(1, 6))


@episode(bare=False)
def kill_agent(world: World, rng: Random) -> None:
    machine = some(rng)
    world.kill(machine, "agent")
    time.sleep(rng.uniform(0, 5))
    world.agent(machine).start()


@episode()
def kill_machine(world: World, rng: Random) -> None:
    world.kill(some(rng), "machine")
    time.sleep(rng.uniform(1, 6))


@episode()
def kill_two_of_three(world: World, rng: Random) -> None:
    what = rng.choice(["member", "machine"])
    for machine in rng.sample(MACHINES, 2):
        world.kill(machine, what)
    time.sleep(rng.uniform(1, 6))


@episode()
def kill_everything(world: World, rng: Random) -> None:
    """Under load."""
    world.kill_everything()
    world.start()


# ---- frozen ----


def _freeze(world: World, rng: Random, what: str) -> None:
    world.freeze(some(rng), what)
    time.sleep(rng.choice([rng.uniform(1, 4), rng.uniform(4, 12), rng.uniform(12, 30)]))
    world.thaw()


@episode(stale=True)
def freeze_member(world: World, rng: Random) -> None:
    _freeze(world, rng, "member")


@episode(bare=False)
def freeze_agent(world: World, rng: Random) -> None:
    _freeze(world, rng, "agent")


@episode(stale=True)
def freeze_machine(world: World, rng: Random) -> None:
    _freeze(world, rng, "machine")


@episode(stale=True)
def freeze_then_kill(world: World, rng: Random) -> None:
    machine, what = some(rng), rng.choice(["member", "machine"])
    world.freeze(machine, what)
    time.sleep(rng.uniform(0.5, 12))
    world.kill(machine, what)
    time.sleep(rng.uniform(0.5, 3))


@episode(bare=False)
def freeze_agent_then_kill_machine(world: World, rng: Random) -> None:
    machine = some(rng)
    world.freeze(machine, "agent")
    time.sleep(rng.uniform(0.5, 6))
    world.kill(machine, "machine")
    time.sleep(rng.uniform(0.5, 3))


# ---- members join and leave ----


@episode()
def rolling_restart(world: World, rng: Random) -> None:
    for machine in rng.sample(MACHINES, len(MACHINES)):
        world.leave(machine)
        if not world.bare and rng.random() < 0.5:
            world.agent(machine).stop()
        world.join(machine)


@episode()
def scale_in_and_out(world: World, rng: Random) -> None:
    machine = some(rng)
    world.leave(machine)
    world.cluster.wait_safe(2)
    time.sleep(rng.uniform(0, 2))
    world.join(machine)


@episode(bare=False)
def leave_while_the_agent_is_frozen(world: World, rng: Random) -> None:
    """Outcomes are unknown, their member leaves gracefully, its agent continues."""
    machine = some(rng)
    world.freeze(machine, "agent")
    time.sleep(rng.uniform(0.5, 3))
    leaving = threading.Thread(target=lambda: world.leave(machine), daemon=True)
    leaving.start()
    leaving.join(rng.uniform(1, 6))
    world.thaw()
    leaving.join(60)


@episode(bare=False)
def join_with_an_agent_down(world: World, rng: Random) -> None:
    machine = some(rng)
    world.kill(machine, "machine")
    time.sleep(rng.uniform(0, 2))
    member = world.launch(machine)
    member.wait()
    time.sleep(rng.uniform(1, 6))
    world.agent(machine).start()


@episode(bare=False, stale=True)
def start_alone(world: World, rng: Random) -> None:
    """A machine that cannot reach the healthy others starts another cluster, which has callers."""
    machine = some(rng)
    world.kill(machine, "machine")
    world.split([machine], [each for each in MACHINES if each != machine])
    world.cluster.wait_safe(2)
    world.agent(machine).start()
    alone = world.launch(machine)
    alone.wait()
    with world.callers_of(alone, rng.randrange(2**31)):
        time.sleep(rng.uniform(2, 8))


# ---- the network ----


def _sides(rng: Random) -> tuple[list[int], list[int]]:
    """One against two, either of which has the oldest member."""
    machine = some(rng)
    others = [each for each in MACHINES if each != machine]
    return ([machine], others) if rng.random() < 0.5 else (others, [machine])


@episode(stale=True)
def split(world: World, rng: Random) -> None:
    world.split(*_sides(rng))
    time.sleep(rng.uniform(3, 15))


@episode(stale=True)
def short_cuts(world: World, rng: Random) -> None:
    for _ in range(rng.randint(2, 5)):
        world.split(*_sides(rng))
        time.sleep(rng.uniform(0.05, 1.0))
        world.network.heal()
        time.sleep(rng.uniform(0.1, 2))


@episode(stale=True)
def one_way_pause(world: World, rng: Random) -> None:
    """Bytes of one direction do not arrive; connections stay."""
    source, target = rng.sample(MACHINES, 2)
    seconds = rng.choice([rng.uniform(1, 7), rng.uniform(9, 15)])
    world.say(f"nothing arrives from {source} at {target} for {seconds:.1f} s")
    world.network.pause(source, target)
    time.sleep(seconds)


@episode(stale=True)
def cut_then_kill(world: World, rng: Random) -> None:
    """Owner and backup lose each other for longer than the backup time-out; then one dies."""
    one, other = rng.sample(MACHINES, 2)
    seconds = rng.uniform(5.5, 7.5)
    world.say(f"nothing passes between {one} and {other} for {seconds:.1f} s")
    world.network.pause(one, other)
    world.network.pause(other, one)
    time.sleep(seconds)
    world.kill(one, "member")
    world.network.cut([(one, other)])  # what is still on its way is lost
    time.sleep(rng.uniform(0.5, 3))


@episode(stale=True)
def split_then_kill(world: World, rng: Random) -> None:
    left, right = _sides(rng)
    world.split(left, right)
    time.sleep(rng.uniform(2, 6))
    for machine in rng.choice([left, right]):
        world.kill(machine, "member")
    time.sleep(rng.uniform(0.5, 3))


# ---- storage and clocks ----


@episode(bare=False)
def full_disk(world: World, rng: Random) -> None:
    with world.full_disk():
        time.sleep(rng.uniform(6, 12))  # segments that exist have their room already


@episode(bare=False)
def maintenance_beside(world: World, rng: Random) -> None:
    """Agents archive, as their logs are small."""
    for maintain in rng.choice(
        [
            (world.rewrite, world.prune),
            (world.rewrite,),
            (world.rewrite, world.rewrite, world.prune),
        ]
    ):
        world.say(maintain())
        time.sleep(rng.uniform(0, 2))


@episode(bare=False)
def maintenance_beside_a_kill(world: World, rng: Random) -> None:
    def maintain() -> None:
        world.say(world.rewrite())
        world.say(world.prune())

    maintaining = threading.Thread(target=maintain, daemon=True)
    maintaining.start()
    time.sleep(rng.uniform(0.3, 2))
    world.kill(some(rng), rng.choice(["member", "machine"]))
    maintaining.join(150)


@episode(bare=False)
def clocks_off(world: World, rng: Random) -> None:
    for machine in rng.sample(MACHINES, rng.randint(1, 3)):
        world.set_clock(machine, rng.choice([-CLOCK_MS, 0, CLOCK_MS]))
    time.sleep(rng.uniform(1, 3))


EPISODES |= DISK_EPISODES
