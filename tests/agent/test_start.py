"""A new cluster gets the log when the nodes that belong to it are present: `start_policy`."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from imap_wal import layout
from imap_wal.agent import handler
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.liveness import SignWatch
from imap_wal.errors import InvalidSetting
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.agent.harness import config, plugin, serving
from tests.kit.starts import former_cluster, settings_of
from tests.support import FakeClock, eventually

FOLDER = "default/c"


def test_the_first_cluster_of_a_log_waits_for_no_node(tmp_path: Path) -> None:
    one, two = settings_of(tmp_path, "n1", "n2")
    with serving(one):
        pass
    with serving(two), plugin(two, greet=False) as member:
        assert member.asked()[0] == "welcome"


def test_a_log_of_one_node_waits_for_no_node(tmp_path: Path) -> None:
    former_cluster(tmp_path, "n1")
    (one,) = settings_of(tmp_path, "n1")
    with serving(one), plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member:
        assert member.asked()[0] == "welcome"
        assert member.values() == {"n1": "1"}


def test_wait_all_names_the_missing_node(tmp_path: Path) -> None:
    """The wait ends when the node's member says hello."""
    former_cluster(tmp_path, "n1", "n2", "n3")
    one, two, three = settings_of(tmp_path, "n1", "n2", "n3")
    with (
        serving(one),
        serving(two),
        plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member,
    ):
        eventually(lambda: "node 'n2'" not in member.asked()[2], "n2 is seen")
        refused = member.asked()
        assert refused[:2] == ["error", "not-ready"]
        assert "node 'n3': no sign of its agent, for the" in refused[2]
        assert (
            "start_policy 'wait-all' waits for all 3 nodes" in refused[2]
            and "(start_timeout_s 120)" in refused[2]
        )
        start = member.stat()["start"]
        assert (start["policy"], start["cluster_id"], start["late"]) == (
            "wait-all",
            "cluster-2",
            False,
        )
        assert list(start["nodes"]) == ["n3"] and "node 'n3'" in start["waiting"]
        assert member.stat()["claim"]["incarnation"] == 1, "nothing was claimed"
        with serving(three):
            eventually(lambda: member.asked()[0] == "welcome", "a late node ends the wait")
            assert member.stat()["start"]["waiting"] == ""
            assert member.hello()["incarnation"] == 2
            assert member.values() == {"n1": "1", "n2": "1", "n3": "1"}


def test_a_node_of_another_cluster_does_not_count(tmp_path: Path) -> None:
    """Each of two clusters waits for the other's node until their members are one cluster."""
    former_cluster(tmp_path, "n1", "n2", "n3")
    one, two, three = settings_of(tmp_path, "n1", "n2", "n3")
    with ExitStack() as stack:
        for settings in (one, two):
            stack.enter_context(serving(settings))
        member = stack.enter_context(plugin(one, greet=False, cluster_id="cluster-2", uuid="new-1"))
        other = stack.enter_context(plugin(two, greet=False, cluster_id="cluster-3", uuid="new-2"))
        eventually(
            lambda: (
                other.asked()
                and "node 'n2': its member is in another cluster, cluster-3" in member.asked()[2]
            ),
            "it is known",
        )
        eventually(
            lambda: (
                member.asked()
                and "node 'n1': its member is in another cluster, cluster-2" in other.asked()[2]
            ),
            "both know it",
        )
        stack.enter_context(serving(three))
        eventually(lambda: other.asked() and "node 'n3'" not in member.asked()[2], "n3 is seen")
        assert member.asked()[0] == other.asked()[0] == "error", "each waits for the other"
        other.cluster_id = "cluster-2"  # its member has joined
        eventually(
            lambda: other.asked() and member.asked()[0] == "welcome", "now they are one cluster"
        )
        assert other.asked()[0] == "welcome"


def test_a_cluster_that_writes_counts_as_alive(tmp_path: Path) -> None:
    """Its agents write no signs of life (`lifetime_timeout_s` is 0), but their logs grow."""
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    with (
        serving(one),
        serving(two),
        plugin(one) as member,
        plugin(two, greet=False, cluster_id="cluster-2", uuid="p2") as out,
    ):
        assert member.put(a="1")[0] == "ack"
        assert out.stat()["claim"]["alive"] is True, "its member has just written"


def test_wait_most_waits_for_more_than_half_of_the_nodes(tmp_path: Path) -> None:
    former_cluster(tmp_path, "n1", "n2", "n3", "n4")
    one, two, three = settings_of(tmp_path, "n1", "n2", "n3", start_policy="wait-most")
    with (
        serving(one),
        serving(two),
        plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member,
    ):
        eventually(lambda: "node 'n2'" not in member.asked()[2], "n2 is seen")
        assert "'wait-most' waits for 3 of the 4 nodes" in member.asked()[2], (
            "two of four are not more than half"
        )
        with serving(three):
            eventually(lambda: member.asked()[0] == "welcome", "three are")


def test_partial_waits_for_no_node(tmp_path: Path) -> None:
    former_cluster(tmp_path, "n1", "n2", "n3")
    (one,) = settings_of(tmp_path, "n1", start_policy="partial")
    with serving(one), plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member:
        assert member.asked()[0] == "welcome"


def test_after_the_timeout_the_error_says_what_to_do(tmp_path: Path) -> None:
    """The wait continues."""
    former_cluster(tmp_path, "n1", "n2")
    one, two = settings_of(tmp_path, "n1", "n2", start_timeout_s=0)
    with serving(one), plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member:
        text = member.asked()[2]
        for part in (
            "within start_timeout_s (0 s)",
            "node 'n2'",
            "Start the missing agents",
            "imap-wal forget-node",
            "imap-wal claim --force",
            '"partial"',
        ):
            assert part in text
        assert member.stat()["start"]["late"]
        assert member.stat()["healthy"], "a service manager must not restart an agent that waits"
        with serving(two):
            eventually(lambda: member.asked()[0] == "welcome", "it came late")


def test_a_node_without_members_is_not_waited_for(tmp_path: Path) -> None:
    """No member has ever used its agent."""
    one, two = settings_of(tmp_path, "n1", "n2")
    with serving(two):
        pass  # started once, perhaps by mistake
    former_cluster(tmp_path, "n1")
    with serving(one), plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member:
        assert member.asked()[0] == "welcome"


def test_views_and_returning_clusters_wait_for_no_node(tmp_path: Path) -> None:
    """Only the first hello of a new cluster waits."""
    former_cluster(tmp_path, "n1", "n2")
    (one,) = settings_of(tmp_path, "n1", start_policy="partial")
    with serving(one), plugin(one, cluster_id="cluster-2", uuid="lone") as lone:
        assert lone.client.ask("bye")[0][0] == "bye"
        store = open_store(one.url)
        eventually(lambda: not store.list(layout.alive_folder(FOLDER)), "it is over")
    (one,) = settings_of(tmp_path, "n1")
    with (
        serving(one),
        plugin(one, greet=False, cluster_id="cluster-1", uuid="restarted", member="a") as member,
    ):
        assert member.asked()[0] == "welcome"
        about = {"cluster_id": "cluster-1", "member_uuid": "a", "members": ["a"], "lost": ["b"]}
        assert member.client.ask("view", about)[0][0] == "view"


def test_agents_with_and_without_members_write_different_signs(tmp_path: Path) -> None:
    """One shows that a cluster is alive, the other that a node is ready."""
    (one,) = settings_of(tmp_path, "n1")
    store = open_store(one.url)

    def given() -> list[str]:
        files = [
            file.path
            for folder in ("alive", "present")
            for file in store.list(f"{FOLDER}/claims/{folder}")
        ]
        return [path.split("/")[-2] for path in files]

    with serving(one):
        eventually(lambda: given() == ["present"], "no member is heard")
        with plugin(one) as member:
            eventually(lambda: member.client.ask("beat") and given() == ["alive"], "one is")
            assert member.client.ask("bye")[0][0] == "bye"
            eventually(lambda: given() == ["present"], "it has stopped")
    assert given() == [], "a clean stop"
    store.create(layout.present_path(FOLDER, "n1", 1, 7), b"cluster-1")
    store.create(layout.present_path(FOLDER, "other", 1, 7), b"cluster-1")
    with serving(one):
        left = [layout.present_path(FOLDER, "n1", 1, 7), layout.present_path(FOLDER, "other", 1, 7)]
        assert [store.exists(path) for path in left] == [False, True], (
            "what a killed agent of this node left is deleted"
        )


def test_a_storage_that_does_not_answer_delays_only_the_hello(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former_cluster(tmp_path, "n1", "n2")
    (one,) = settings_of(tmp_path, "n1")
    hanging = threading.Event()
    with (
        serving(one),
        plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member,
        plugin(one, greet=False) as other,
    ):
        look = SignWatch.look
        monkeypatch.setattr(
            SignWatch, "look", lambda watch, begun: hanging.wait(60) and look(watch, begun)
        )
        asked = member.client.post("hello", member.about())
        assert other.stat()["node"] == "n1", "the loop answers"
        header, _ = member.client.answer(asked)
        assert header[2] == "not-ready" and "its storage has not answered yet" in header[3]
        hanging.set()
        eventually(lambda: "node 'n2'" in member.asked()[2], "it answers again")


def test_a_slow_look_counts_for_the_next_hello(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow object store with many nodes, a look at the signs takes longer than a hello may."""
    former_cluster(tmp_path, "n1", "n2")
    one, two = (config(tmp_path, node, lifetime_timeout_s=600) for node in ("n1", "n2"))
    gate = threading.Semaphore(0)
    with (
        serving(one) as agent,
        plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member,
    ):
        assert "node 'n2'" in member.asked()[2]
        start = agent._log.sessions.start
        watch, look = start._watch, start._watch.look
        monkeypatch.setattr(watch, "look", lambda begun: gate.acquire(timeout=60) and look(begun))
        with serving(two):
            assert "node 'n2'" in member.asked()[2], "the error has what is known"
            member.cluster_id = "cluster-3"
            assert "has not answered yet" in member.asked()[2], (
                "about another cluster it knows nothing"
            )
            eventually(lambda: gate.release() or start.looked(start._asked[2]), "the look ends")
            while gate.acquire(blocking=False):
                pass
            assert member.asked()[0] == "welcome", "although the next look has not ended"
            for _ in range(100):
                gate.release()


def test_a_look_that_fails_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former_cluster(tmp_path, "n1", "n2")
    (one,) = settings_of(tmp_path, "n1")

    def broken(*_: object) -> None:
        raise OSError("the disk is away")

    with serving(one), plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member:
        monkeypatch.setattr(SignWatch, "alive", broken)
        eventually(
            lambda: "OSError: the disk is away" in member.asked()[2], "the error has the reason"
        )
        monkeypatch.undo()
        eventually(lambda: "node 'n2'" in member.asked()[2], "it works again")


def test_while_a_cluster_waits_the_loop_reads_no_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former_cluster(tmp_path, "n1", "n2")
    (one,) = settings_of(tmp_path, "n1")
    looking: set[str] = set()
    for name in ("alive", "_see", "_presence"):
        method = getattr(SignWatch, name)
        monkeypatch.setattr(
            SignWatch,
            name,
            lambda watch, *rest, method=method: (
                looking.add(threading.current_thread().name) or method(watch, *rest)
            ),
        )
    with serving(one), plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member:
        for _ in range(3):
            assert "node 'n2'" in member.asked()[2]
    assert looking == {"imap-wal-alive"}


def test_a_look_takes_less_than_the_connect_timeout() -> None:
    """The agent answers before the plug-in closes the connection."""
    assert handler.LOOK_S < 2.0


# ---- what counts as present ----


def seen(watch: SignWatch, node: str) -> str:
    """Why the node does not count as present, after a look."""
    watch.ask()
    watch.look(watch.begin())
    return watch.sight.nodes[node].absent


def watching(memory: MemoryStore) -> tuple[SignWatch, FakeClock]:
    clock = FakeClock()
    return SignWatch(memory, FOLDER, 6, clock, lambda: ["n2"]), clock


def test_a_sign_that_a_killed_agent_left_does_not_count(memory: MemoryStore) -> None:
    watch, clock = watching(memory)
    memory.create(layout.present_path(FOLDER, "n2", 1, 7), b"")
    assert "has not changed" in seen(watch, "n2"), "it was there before the first look"
    clock.advance(3)
    assert "has not changed for 3 s" in seen(watch, "n2")
    memory.create(layout.present_path(FOLDER, "n2", 2, 1), b"")
    assert seen(watch, "n2") == "", "this one is new"


def test_a_sign_expires_by_observation_and_not_by_age(memory: MemoryStore) -> None:
    """It counts until it was seen unchanged for the whole time."""
    watch, clock = watching(memory)
    assert "no sign of its agent" in seen(watch, "n2")
    memory.create(layout.present_path(FOLDER, "n2", 1, 1), b"cluster-2")
    clock.advance(100)
    assert seen(watch, "n2") == ""
    assert watch.sight.nodes["n2"].cluster_id == "cluster-2"
    clock.advance(5)
    assert seen(watch, "n2") == ""
    memory.create(layout.present_path(FOLDER, "n2", 1, 2), b"cluster-3")
    memory.delete(layout.present_path(FOLDER, "n2", 1, 1))
    assert seen(watch, "n2") == ""
    assert watch.sight.nodes["n2"].cluster_id == "cluster-3"
    clock.advance(6)
    assert "has not changed for 6 s" in seen(watch, "n2"), "it was killed"
    memory.delete(layout.present_path(FOLDER, "n2", 1, 2))
    assert "no sign of its agent, for the 111 s" in seen(watch, "n2")


def test_a_sign_that_only_an_old_listing_shows_was_renewed(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing may be old, as on NFS; a sign that no longer exists was renewed under another
    name."""
    watch, clock = watching(memory)
    path = layout.present_path(FOLDER, "n2", 1, 1)
    memory.create(path, b"")
    listing = memory.list(f"{FOLDER}/claims/present")
    memory.delete(path)
    monkeypatch.setattr(
        MemoryStore, "list", lambda store, folder: listing if folder.endswith("present") else []
    )
    assert seen(watch, "n2"), "it may be what a kill left"
    clock.advance(6)
    assert seen(watch, "n2") == ""


def test_a_node_of_any_name_is_found_by_its_sign() -> None:
    for node in ("a-1", "a-00000001-00000001", "ä/b", "n"):
        assert layout.parse_sign_path(layout.present_path(FOLDER, node, 3, 4)) == node


# ---- settings ----


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(
        InvalidSetting,
        match="lifetime_timeout_s is 0, so agents give no signs, and start_policy is 'wait-all'",
    ):
        AgentConfig.from_mapping({"url": "memory://x", "lifetime_timeout_s": 0})
    with pytest.raises(
        InvalidSetting, match="start_policy is 'most'; it takes one of wait-all, wait-most, partial"
    ):
        AgentConfig.from_mapping({"url": "memory://x", "start_policy": "most"})
    with pytest.raises(InvalidSetting, match="start_timeout_s is -1"):
        AgentConfig.from_mapping({"url": "memory://x", "start_timeout_s": -1})
    assert (
        AgentConfig.from_mapping(
            {"url": "memory://x", "lifetime_timeout_s": 0, "start_policy": "partial"}
        ).start_timeout_s
        == 120
    )
