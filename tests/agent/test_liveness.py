"""Another cluster does not claim the log while the one that has it is alive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imap_wal import layout
from imap_wal.agent.membership.liveness import LEFT_S, SignOfLife, SignWatch, signs
from storage_backends import SegmentStore, open_store
from storage_backends.memory import MemoryStore
from tests.agent.harness import Plugin, config, plugin, serving
from tests.support import FakeClock, eventually

FOLDER = "default/c"
LONG_S = 600
"""Longer than any test: nothing in a test happens because this time has passed."""


def asked(member: Plugin) -> list[Any]:
    """Say hello; the answer's header without its number."""
    header, _ = member.client.ask("hello", member.about())
    return [header[0], *header[2:]]


def leave(member: Plugin, store: SegmentStore) -> None:
    """Say bye as the last member that this agent hears, and wait until the sign is removed."""
    eventually(lambda: signs(store, FOLDER), "its sign")
    assert member.client.ask("bye")[0][0] == "bye"
    eventually(lambda: not signs(store, FOLDER), "the sign is removed with the last member")


def test_a_new_cluster_waits_while_the_former_lives(tmp_path: Path) -> None:
    """Its error names the former cluster and the node that is alive."""
    one, two = (
        config(tmp_path, "n1", lifetime_timeout_s=LONG_S),
        config(tmp_path, "n2", lifetime_timeout_s=LONG_S),
    )
    store = open_store(one.url)
    with (
        serving(one),
        serving(two),
        plugin(one) as old,
        plugin(two, greet=False, cluster_id="cluster-2", uuid="plugin-2") as lone,
    ):
        eventually(lambda: signs(store, FOLDER), "the sign of the first")
        for _ in range(3):
            refused = asked(lone)
            assert refused[:2] == ["error", "not-ready"]
            assert (
                "the former cluster cluster-1 is alive" in refused[2]
                and "node 'n1'" in refused[2]
                and "waiting" in refused[2]
            )
        assert old.put(a="1")[0] == "ack", "nothing was claimed"
        assert [
            file.path for file in store.list(f"{FOLDER}/claims") if file.path.endswith(".claim")
        ] == [layout.claim_path(FOLDER, 1)]
        leave(old, store)
        assert asked(lone)[0] == "welcome", "after a clean stop there is no wait"


def test_a_voided_cluster_waits_while_the_newer_lives(tmp_path: Path) -> None:
    """A cluster that returns does not claim the log from a cluster that is alive."""
    one = config(tmp_path, "n1", lifetime_timeout_s=LONG_S)
    store = open_store(one.url)
    with serving(one), plugin(one) as first:
        leave(first, store)
        with (
            plugin(one, cluster_id="cluster-2", uuid="plugin-2") as second,
            plugin(one, greet=False, uuid="plugin-1, again") as again,
        ):
            eventually(lambda: signs(store, FOLDER), "the sign of the second")
            assert "the former cluster cluster-2 is alive" in asked(again)[2]
            leave(second, store)
            assert asked(again)[0] == "welcome"


def test_a_view_and_another_member_of_the_cluster_never_wait(tmp_path: Path) -> None:
    one, two = (
        config(tmp_path, "n1", lifetime_timeout_s=LONG_S),
        config(tmp_path, "n2", lifetime_timeout_s=LONG_S),
    )
    with serving(one), serving(two), plugin(one, member="a") as first:
        eventually(lambda: signs(open_store(one.url), FOLDER), "the sign")
        with plugin(two, greet=False, uuid="plugin-2", member="b") as second:
            assert asked(second)[0] == "welcome"
            about = {"cluster_id": "cluster-1", "member_uuid": "a", "members": ["a"], "lost": ["b"]}
            assert first.client.ask("view", about)[0][0] == "view"


def test_a_sign_lasts_while_members_are_heard(tmp_path: Path) -> None:
    """It is renewed while they send beats, and removed when they do not."""
    settings = config(tmp_path, lifetime_timeout_s=0.3)
    store = open_store(settings.url)
    with serving(settings), plugin(settings) as member:
        seen: set[str] = set()
        eventually(
            lambda: (
                member.client.ask("beat") and (seen.update(signs(store, FOLDER)) or len(seen) >= 3)
            ),
            "it is renewed",
        )
        eventually(lambda: not signs(store, FOLDER), "nothing is heard: it is removed")
        eventually(lambda: member.client.ask("beat") and signs(store, FOLDER), "heard again")


def test_a_killed_member_gives_no_sign_any_more(tmp_path: Path) -> None:
    """Its connections end without a bye. The next cluster does not wait for renewals."""
    settings = config(tmp_path, lifetime_timeout_s=LONG_S)
    store = open_store(settings.url)
    with serving(settings):
        with plugin(settings):
            eventually(lambda: signs(store, FOLDER), "its sign")
        eventually(lambda: not signs(store, FOLDER), "the sign is removed")


def test_a_member_that_connects_again_keeps_its_sign(memory: MemoryStore) -> None:
    """Also if another connection of it has ended."""
    clock = FakeClock()
    store, watch = memory, SignWatch(memory, FOLDER, LONG_S, clock)
    store.create(layout.claim_path(FOLDER, 1), b"")
    sign = SignOfLife(
        store, FOLDER, "n1", 1, LONG_S, watch, clock, claimed_by=str, due=lambda: None
    )

    def turn() -> bool:
        watch.wake.set()  # do not wait for the real time
        return sign._turn(sign.worker) and bool(signs(store, FOLDER))

    sign.greeted("cluster-1")
    sign.heard(1)
    assert turn()
    sign.left("cluster-1")
    clock.advance(LEFT_S / 2)
    assert turn(), "it may connect again"
    sign.greeted("cluster-1")
    clock.advance(LEFT_S)
    assert turn(), "it has"
    sign.left("cluster-1")
    clock.advance(LEFT_S)
    assert not turn(), "it has not"
    sign.heard(1)
    assert turn(), "after a longer time"


def test_a_waiting_cluster_does_not_prolong_the_former_sign(tmp_path: Path) -> None:
    """Its member says hello to the agent of a killed member, again and again, and its connections
    end too. It is present there as soon as the sign is gone."""
    settings = config(tmp_path, lifetime_timeout_s=LONG_S)
    store = open_store(settings.url)
    with serving(settings):
        with plugin(settings):
            eventually(lambda: signs(store, FOLDER), "the sign of the former cluster")

        def asks() -> bool:
            with plugin(settings, greet=False, cluster_id="cluster-2", uuid="plugin-2") as next_one:
                return asked(next_one)[0] == "welcome"

        eventually(asks, "the next cluster gets the log")


def test_members_of_an_older_incarnation_give_no_sign(tmp_path: Path) -> None:
    """Their beats are refused and do not renew it."""
    settings = config(tmp_path, lifetime_timeout_s=LONG_S)
    store = open_store(settings.url)
    with serving(settings) as agent, plugin(settings) as old:
        leave(old, store)
        assert asked(old)[0] == "welcome"
        sign = agent._log.sessions.sign
        assert sign is not None
        leave(old, store)
        with (
            plugin(settings, greet=False) as stale,
            plugin(settings, cluster_id="cluster-2", uuid="plugin-2") as new,
        ):
            assert asked(stale)[:2] == ["error", "void-incarnation"]
            leave(new, store)
            assert stale.client.ask("beat")[0][2] == "not-ready"
            assert not sign._heard


def test_a_stop_and_the_next_open_remove_the_sign(tmp_path: Path) -> None:
    settings = config(tmp_path, lifetime_timeout_s=LONG_S)
    store = open_store(settings.url)
    with serving(settings), plugin(settings):
        eventually(lambda: signs(store, FOLDER), "the sign")
    assert signs(store, FOLDER) == [], "a clean stop"
    killed, other = layout.alive_path(FOLDER, "n1", 1, 7), layout.alive_path(FOLDER, "n1-2", 1, 7)
    store.create(killed, b"")
    store.create(other, b"")
    with serving(settings):
        assert signs(store, FOLDER) == [other], "left by a kill: deleted; another node's: kept"


def test_an_agent_without_members_watches_signs_in_advance(tmp_path: Path) -> None:
    """A cluster that was killed with its agents, and starts again, waits only for the rest of the
    time."""
    settings = config(tmp_path, lifetime_timeout_s=0.3)
    store = open_store(settings.url)
    with serving(settings), plugin(settings):
        pass
    left = layout.alive_path(FOLDER, "gone", 1, 7)
    store.create(left, b"")
    with serving(settings) as agent:
        watch = agent._log.sessions.start._watch
        eventually(
            lambda: left in watch._since and watch.alive() == "", "it has not changed for so long"
        )
        with plugin(settings, cluster_id="cluster-2", uuid="plugin-2") as new:
            assert new.incarnation == 2
    assert signs(store, FOLDER) == [], "what was waited for is removed"


def test_a_sign_expires_by_observation_and_not_by_age(memory: MemoryStore) -> None:
    """It counts until it was seen unchanged for the whole time."""
    clock = FakeClock()
    watch = SignWatch(memory, FOLDER, 6, clock)
    assert watch.alive() == "", "no sign, no wait"
    memory.create(layout.alive_path(FOLDER, "n1", 1, 1), b"")
    memory.create(layout.alive_path(FOLDER, "n2", 1, 1), b"")
    clock.advance(100)
    assert "'n1'" in watch.alive() and "'n2'" in watch.alive(), (
        "whatever its age is, it is new here"
    )
    clock.advance(5)
    memory.delete(layout.alive_path(FOLDER, "n1", 1, 1))
    memory.create(layout.alive_path(FOLDER, "n1", 1, 2), b"")
    assert "has not changed for 5.0 s" in watch.alive()
    clock.advance(1.5)
    assert "'n1'" in watch.alive() and "'n2'" not in watch.alive()
    clock.advance(6)
    assert watch.alive() == ""
    watch.forget()
    assert signs(memory, FOLDER) == []


def test_a_sign_that_only_an_old_listing_shows_was_renewed(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing may be old, as on NFS; a sign that no longer exists was renewed under another
    name."""
    clock = FakeClock()
    watch = SignWatch(memory, FOLDER, 6, clock)
    memory.create(layout.alive_path(FOLDER, "n1", 1, 1), b"")
    listing = memory.list(f"{FOLDER}/claims/alive")
    memory.delete(layout.alive_path(FOLDER, "n1", 1, 1))
    monkeypatch.setattr(MemoryStore, "list", lambda *_: listing)
    for _ in range(3):
        assert watch.alive()
        clock.advance(10)


def test_without_a_timeout_no_cluster_waits(memory: MemoryStore) -> None:
    """`lifetime_timeout_s` is 0."""
    memory.create(layout.alive_path(FOLDER, "n1", 1, 1), b"")
    assert SignWatch(memory, FOLDER, 0, FakeClock()).alive() == ""


def test_a_node_of_any_name_is_found_by_its_sign(memory: MemoryStore) -> None:
    for node in ("a-1", "a-00000001-00000001", "ä/b", "n"):
        assert layout.parse_sign_path(layout.alive_path(FOLDER, node, 3, 4)) == node
    assert layout.parse_sign_path(layout.claim_path(FOLDER, 3)) is None
