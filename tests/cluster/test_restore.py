"""Two members, two agents, one folder of logs, agents' clocks ten minutes apart; members that join,
leave and die while clients write; then SIGKILL to all.

What was acknowledged is restored by a restart with two members, and again by one with three. What
was not acknowledged may be restored or not.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from imap_wal.entry import ORDER
from tests.cluster.history import Now, Scene, written
from tests.cluster.load import Load
from tests.cluster.values import CLIENT_OPTIONS
from tests.cluster.waiting import until


@dataclass
class Moves:
    load: Load
    entries_on_nodes: dict[str, int]
    incarnations: set[int]


@written(last=True)
def big(scene: Scene) -> dict[Any, Any]:
    """Enough entries for many chunks of a restore."""
    entries = {f"key-{number}": f"{number}" * 20 for number in range(20_000)}
    scene.map("chunked-big").put_all(entries)
    return entries


@written
def many(scene: Scene) -> None:
    """Enough maps to notice if the logs were read once for each of them."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: scene.map(f"many-{number}").put("key", number), range(40)))


@written(last=True)
def moves(scene: Scene) -> Moves:
    """Runs last: it ends with everything killed while the writers write."""
    cluster = scene.cluster
    client = cluster.client(**CLIENT_OPTIONS, invocation_timeout=60)
    load = Load(client, "moves", value_bytes=200)

    def more(count: int) -> None:
        target = load.acknowledged + count
        until(
            f"{count} more changes are acknowledged; seed {load.seed}; {load.errors}",
            lambda: load.acknowledged > target,
        )

    try:
        more(200)
        third = cluster.join(3)
        more(200)
        third.leave()
        more(50)
        cluster.wait_safe(2)
        third = cluster.join(3)
        more(200)
        cluster.members[1].kill()  # agent 2 continues to run, with its log
        more(200)
        cluster.wait_safe(2)
        cluster.join(2)
        more(200)
        cluster.members[0].leave()  # the oldest: another one becomes master
        more(200)
        cluster.wait_safe(2)
    finally:
        cluster.kill_everything()
        load.stop()
    return Moves(load, *_on_nodes(scene))


def _on_nodes(scene: Scene) -> tuple[dict[str, int], set[int]]:
    found: dict[str, int] = {}
    incarnations = set()
    for changes in scene.log().changes(maps=("moves",)):
        found[changes.node] = found.get(changes.node, 0) + len(changes.rows)
        incarnations |= {row[ORDER][0] for row in changes.rows}
    return found, incarnations


def test_moving_partitions_lose_nothing_acknowledged(now: Now) -> None:
    """No removed key returns either; clients write while partitions move."""
    load = now.written("moves").load
    contents = now.contents("moves")
    assert load.differences(contents) == [], f"seed {load.seed}"
    assert load.acknowledged > 1000
    known = sum(len(allowed) == 1 for allowed in load.may_be.values())
    assert known > len(load.may_be) * 0.8, load.errors
    before = now.history.first_seen.setdefault("moves", contents)
    assert contents == before  # nothing is in doubt any more


def test_memory_is_never_older_than_what_was_acknowledged(now: Now) -> None:
    """Clients read and write while partitions move."""
    assert now.written("moves").load.stale == []


def test_every_node_wrote_and_the_lost_member_made_a_view(now: Now) -> None:
    """The tests above need both."""
    moves = now.written("moves")
    assert set(moves.entries_on_nodes) == {"node-1", "node-2", "node-3"}
    # The lost member needs a view. So does each of the two that left, if the outcome of a change
    # was still unknown then. Numbers may have gaps: agents that claim at the same moment each
    # reserve one.
    assert 2 <= len(moves.incarnations) <= 4, moves.incarnations
    lifetimes = now.log().manifest().lifetimes
    assert (
        len({each.cluster_id for each in lifetimes if each.incarnation in moves.incarnations}) == 1
    )


def test_partitions_are_spread_over_all_members(now: Now) -> None:
    now.written("big")
    owned = [member.ask("owned-entries", "chunked-big") for member in now.cluster.members]
    assert sum(owned) == 20_000
    assert min(owned) > 20_000 / now.members / 2


def test_big_map_is_whole(now: Now) -> None:
    assert now.contents("chunked-big") == now.written("big")


def test_logs_are_read_once_for_all_maps(now: Now) -> None:
    """All maps, one of them in twenty chunks, were loaded when the agents had read this much,
    Python's and Parquet's own files included."""
    now.written("many")
    loads = len(now.history.names) + 20
    assert loads > 50
    assert max(now.bytes_read) < min(
        3 * now.history.log_bytes + 20 * 2**20, loads / 3 * now.history.log_bytes
    )


def test_a_manual_load_all_reads_no_log(now: Now) -> None:
    """`load_all` asks the agents for chunks."""
    before = [agent.bytes_read() for agent in now.cluster.agents if agent.running]
    now.map("chunked-big").load_all(replace_existing_values=True)
    until("all is there", lambda: now.map("chunked-big").size() == 20_000)
    after = [agent.bytes_read() for agent in now.cluster.agents if agent.running]
    assert sum(after) - sum(before) < now.history.log_bytes


def test_each_lifetime_has_a_greater_incarnation(now: Now) -> None:
    """Each lifetime of the cluster has its own."""
    lifetimes = now.log().manifest().lifetimes
    clusters = list(dict.fromkeys(lifetime.cluster_id for lifetime in lifetimes))
    given = [lifetime.incarnation for lifetime in lifetimes]
    assert given == sorted(set(given)), (
        "one that two agents asked for at the same moment may be left out"
    )
    assert len(clusters) == {2: 2, 3: 3}[now.members], (
        "a view has the cluster id of the lifetime before"
    )
