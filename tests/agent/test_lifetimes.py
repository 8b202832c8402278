"""One connection or cluster after another uses a log: what was acknowledged is never void."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imap_wal import format
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.manifest.claims import claim_manifests
from imap_wal.manifest.cluster import ClusterManifestLog
from storage_backends import open_store
from tests.agent.harness import config, named, plugin, serving
from tests.kit.agents import live
from tests.support import FakeClock, Threads, eventually


def test_a_welcome_counts_an_append_received_with_the_hello(settings: AgentConfig) -> None:
    """The append arrives on the plug-in's earlier connection, in the same turn of the loop."""
    agent = Agent(settings)  # not serving: both requests are received in one turn
    try:
        with plugin(settings, greet=False) as old, plugin(settings, greet=False) as new:
            greeting = Threads(old.hello)
            eventually(lambda: agent._turn(10) or old.session, "the first was welcomed")
            greeting.join()
            sent = Threads(lambda: old.send(1, {"a": "1"}))
            eventually(lambda: _waits_there(agent), "it has arrived")
            welcomes: list[int] = []
            again = Threads(lambda: welcomes.append(new.hello()["last_request"]))
            messages = eventually(lambda: _both(agent), "both requests are there")
            agent._router.receive = lambda timeout_ms: messages  # type: ignore[method-assign,assignment]
            agent._turn(0)
            del agent._router.receive
            eventually(lambda: agent._turn(10) or welcomes, "the second was welcomed")
            sent.join()
            again.join()
            assert welcomes == [1]
    finally:
        agent.stop()
        agent.serve()


_held: list[Any] = []


def _waits_there(agent: Agent) -> bool:
    """Whether a request has arrived: the loop does not run, so another thread has read it."""
    router: Any = agent._router
    return bool(router._ready)


def _both(agent: Agent) -> list[Any]:
    """The requests received so far, when there are two."""
    _held.extend(agent._router.receive(10))
    return _held[:] if len(_held) >= 2 else []


def test_a_replaced_cluster_is_refused(tmp_path: Path) -> None:
    """The change under way is not acknowledged, and later ones are `void-incarnation`."""
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    with serving(one), serving(two), plugin(one) as old:
        assert old.put(a="1", b="1")[0] == "ack"
        with plugin(two, cluster_id="cluster-2", uuid="plugin-2") as new:
            assert new.incarnation == 2
            assert new.values() == {"a": "1", "b": "1"}
            answer = old.put(a="2")
            assert answer[:2] in (["error", "outcome-unknown"], ["error", "void-incarnation"])
            assert old.put(a="3")[:2] == ["error", "void-incarnation"]
            assert new.put(b="2")[0] == "ack"
            assert new.values() == {"a": "1", "b": "2"}
    assert live(one) == {"a": "1", "b": "2"}


def test_a_replaced_cluster_is_refused_until_it_is_restarted(tmp_path: Path) -> None:
    """Each hello of its members is refused; a new cluster on the same node is welcome."""
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    with serving(one), serving(two), plugin(one) as old:
        old.put(a="1")
        with plugin(two, cluster_id="cluster-2", uuid="plugin-2") as new:
            assert old.put(a="2")[1] in ("outcome-unknown", "void-incarnation")
            for _ in range(3):
                header, _ = old.client.ask("hello", old.about())
                assert (header[0], header[2]) == ("error", "void-incarnation")
                assert "followed by 2" in header[3]
                assert old.put(a="3")[0] == "error"
            assert new.put(b="1")[0] == "ack"
        with plugin(one, cluster_id="cluster-3", uuid="plugin-1-again") as again:
            assert again.put(c="1")[0] == "ack"
    assert live(one) == {"a": "1", "b": "1", "c": "1"}


def test_a_member_that_merged_into_the_older_cluster_continues(tmp_path: Path) -> None:
    """The plug-in of the newest incarnation proves that the cluster with the older id continues."""
    one = config(tmp_path, "n1")
    with serving(one), plugin(one) as first:
        first.put(a="1")
        with plugin(one, cluster_id="cluster-2", uuid="plugin-2") as second:
            second.put(b="1")
        with plugin(one, uuid="plugin-2") as merged:
            assert merged.put(c="1")[0] == "ack"
    assert live(one) == {"a": "1", "b": "1", "c": "1"}


def test_no_acknowledged_change_is_void(tmp_path: Path) -> None:
    """Clusters claim the log from each other while members of the replaced one write."""
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    acked: set[str] = set()

    def write(settings: AgentConfig, fight: int, member: int) -> None:
        """Write for a cluster until it is refused."""
        with plugin(
            settings, cluster_id=f"cluster-{fight}", uuid=f"plugin-{fight}-{member}"
        ) as old:
            for number in range(1, 100_000):
                key = f"{fight}.{member}.{number}"
                answer = old.put(**{key: "v"})
                if answer[0] != "ack":
                    assert answer[1] in ("outcome-unknown", "void-incarnation"), answer
                    return
                acked.add(key)

    def fight(number: int) -> None:
        writers = Threads(lambda: write(one, number, 1), lambda: write(two, number, 2))
        eventually(
            lambda: {f"{number}.1.5", f"{number}.2.5"} <= acked,
            "both members of the old cluster write",
        )
        with plugin(
            one if number % 2 else two, cluster_id=f"rival-{number}", uuid=f"rival-{number}"
        ) as rival:
            assert rival.put(**{f"rival.{number}": "v"})[0] == "ack"
            acked.add(f"rival.{number}")
            writers.join()

    with serving(one), serving(two):
        for number in range(8):
            fight(number)
    found = live(one)
    assert acked <= found.keys(), f"acknowledged and void: {sorted(acked - found.keys())}"


def test_an_append_received_with_another_clusters_hello_is_not_void(settings: AgentConfig) -> None:
    """The append of the old cluster and the hello of the new one arrive in one turn of the loop: an
    append that is acknowledged counts."""
    agent = Agent(settings)
    answers: list[Any] = []
    try:
        with (
            plugin(settings, greet=False) as old,
            plugin(settings, greet=False, cluster_id="cluster-2", uuid="plugin-2") as new,
        ):
            greeting = Threads(old.hello)
            eventually(lambda: agent._turn(10) or old.session, "the first was welcomed")
            greeting.join()
            _held.clear()
            sent = Threads(lambda: answers.append(old.send(1, {"a": "1"})))
            eventually(lambda: _waits_there(agent), "it has arrived")
            eventually(
                lambda: _held.extend(agent._router.receive(10)) or _held, "the append is there"
            )
            again = Threads(new.hello)
            messages = eventually(lambda: _both(agent), "both requests are there")
            agent._router.receive = lambda timeout_ms: messages  # type: ignore[method-assign,assignment]
            agent._turn(0)
            del agent._router.receive
            eventually(lambda: agent._turn(10) or (answers and new.session), "both were answered")
            sent.join()
            again.join()
    finally:
        agent.stop()
        agent.serve()
    assert ("a" in live(settings)) or answers[0][0] == "error"


def test_the_cluster_manifest_has_each_lifetime_with_its_cuts(tmp_path: Path) -> None:
    """Each lifetime has its cluster id, its incarnation, and the positions where the logs ended."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        member.put(a="1")
        with plugin(settings, cluster_id="cluster-2", uuid="plugin-2"):
            pass
    manifest = ClusterManifestLog(
        Context(open_store(settings.url), clock=FakeClock(), randomness=SeededRandomness(1)),
        "default/c",
    ).read()[1]
    claims = (
        claim_manifests(
            Context(open_store(settings.url), clock=FakeClock(), randomness=SeededRandomness(1)),
            "default/c",
        )
        .read()[1]
        .claims
    )
    assert named(dict(claims)) == {"cluster-1": 1, "cluster-2": 2}
    first, second = manifest.lifetimes
    found = (first.cluster_id, first.incarnation, second.cluster_id, second.incarnation)
    assert named(found) == ("cluster-1", 1, "cluster-2", 2)
    assert second.cuts["n1"] > first.cuts.get("n1", format.START)
