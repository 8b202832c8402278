"""Attack: make an agent keep ever more sessions and members, or get two sessions for one
connection."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from imap_wal import layout
from imap_wal.agent import handler
from imap_wal.agent.membership.sessions import IDLE_SESSIONS_KEPT, SessionRegistry
from imap_wal.agent.membership.start import Start
from imap_wal.agent.requests import About, Wish
from imap_wal.context import open_context
from imap_wal.errors import TooLarge
from imap_wal.manifest.claims import MEMBERS_MAX, ClaimManifest
from imap_wal.read.cluster import ClusterLog
from imap_wal.write.node_log import PLUGINS_KEPT
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.agent.harness import config, identity, plugin, serving
from tests.kit.logs import cluster, opened
from tests.support import FakeClock, eventually


def test_a_second_hello_while_one_waits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection gets one session, that of its first hello."""
    monkeypatch.setattr(handler, "LOOK_S", 60)
    settings = config(tmp_path, lifetime_timeout_s=60, start_policy="partial")
    with (
        serving(settings) as agent,
        plugin(settings) as former,
        plugin(settings, greet=False, cluster_id="cluster-2", uuid="new") as member,
    ):
        assert former.client.ask("bye")[0][0] == "bye"
        store = open_store(settings.url)
        eventually(
            lambda: not store.list(layout.alive_folder("default/c")), "the former cluster has ended"
        )
        looked, may_look = Start.looked, threading.Event()
        monkeypatch.setattr(
            Start, "looked", lambda start, number: may_look.is_set() and looked(start, number)
        )
        first = member.client.post("hello", member.about())
        eventually(lambda: agent._handler.kept, "the first hello waits")
        (kept,) = agent._handler.kept
        second, _ = member.client.ask("hello", member.about(plugin_uuid="another"))
        assert second[0] == "error"
        assert (
            second[2:] == ["not-ready", second[3]]
            and "an earlier hello of this connection waits for its answer" in second[3]
        )
        assert [each.message for each in agent._handler.kept] == [kept.message]
        may_look.set()
        header, _ = member.client.answer(first)
        assert (header[0], header[2]["session"], header[2]["incarnation"]) == ("welcome", 2, 2)
        assert {plugin for plugin, _ in agent._log.sessions._by_plugin} == {
            identity("plugin-1"),
            identity("new"),
        }


def test_sessions_that_ended_are_forgotten_and_connected_ones_are_not(memory: MemoryStore) -> None:
    clock = FakeClock()
    log = opened(memory, clock)
    sessions = SessionRegistry(log, cluster(memory, clock))
    who = About("c-1", "stays", "write")
    stays, _ = sessions.hello(b"stays", who)
    for number in range(3 * IDLE_SESSIONS_KEPT):
        sender = b"c%d" % number
        session, new = sessions.hello(sender, replace(who, plugin_uuid=f"p-{number}"))
        assert new
        sessions.gone(sender)
    assert len(sessions._by_number) == len(sessions._by_plugin) <= IDLE_SESSIONS_KEPT + 2
    assert sessions.refusal(b"stays", stays.number) is None
    again, new = sessions.hello(b"again", replace(who, plugin_uuid=f"p-{number}"))
    assert (again.number, new) == (session.number, False)
    log.close()


def test_many_hellos_do_not_make_an_agent_forget_a_member(tmp_path: Path) -> None:
    """Its session has logged something; those of the other plug-ins have not."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        member.put(a="1")
        session = member.session
        for number in range(PLUGINS_KEPT + 6):
            with plugin(settings, uuid=f"other-{number}", member=f"other-{number}"):
                pass
    with serving(settings), plugin(settings) as member:
        assert (member.session, member.hello()["last_request"]) == (session, 1)


def test_a_view_is_never_larger_than_its_limit(memory: MemoryStore) -> None:
    clock = FakeClock()
    log = opened(memory, clock)
    sessions = SessionRegistry(log, cluster(memory, clock))
    who = About("c-1", "p", "write", member_uuid="m-0")
    sessions.hello(b"a", who)
    members = [f"m-{number}" for number in range(MEMBERS_MAX)]
    assert sessions.view(b"a", Wish("c-1", "m-0", members, ["lost"])).incarnation == 2
    sessions.hello(b"b", replace(who, plugin_uuid="q", member_uuid="m-1", view=2))
    before = log.claims.read()
    with pytest.raises(
        TooLarge,
        match="view 2 already has 1000 members, the most that are possible, and member another",
    ):
        sessions.hello(b"c", replace(who, plugin_uuid="r", member_uuid="another", view=2))
    assert log.claims.read() == before
    log.close()


def test_another_view_bounds_the_list_of_lost_members(memory: MemoryStore) -> None:
    clock = FakeClock()
    log = opened(memory, clock)
    sessions = SessionRegistry(log, cluster(memory, clock))
    who = About("c-1", "p", "write", member_uuid="m-0")
    sessions.hello(b"a", who)
    found: list[ClaimManifest] = []
    for turn in range(4):
        sessions.view(
            b"a",
            Wish(
                "c-1",
                "m-0",
                ["m-0"],
                [f"lost-{turn}-{number}" for number in range(MEMBERS_MAX // 2)],
            ),
        )
        sessions.hello(b"a", replace(who, view=turn))
        found.append(log.claims.read()[1])
    assert all(len(claims.lost) <= MEMBERS_MAX for claims in found)
    assert [claims.newest for claims in found] == [2, 2, 3, 3]
    assert not found[-1].admits("lost-0-1", 2), (
        "it does not know the number of the view that followed"
    )
    log.close()


def test_a_view_keeps_few_records_of_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each session of a member adds a record to the log; a running agent merges all of them."""
    monkeypatch.setattr("imap_wal.read.merge.MEMBERS_MAX", 3)
    settings = config(tmp_path)
    with serving(settings) as agent:
        for number in range(6):
            with plugin(settings, uuid=f"plugin-{number}") as member:
                assert member.put(a=str(number))[0] == "ack"
                member.keys()
        sessions = [item[4] for item in agent._reads._view.metadata()]
    assert sessions == [4, 5, 6]


def test_views_without_changes_leave_one_lifetime(tmp_path: Path) -> None:
    """The manifest of the cluster has every lifetime that can void an entry."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        sizes = []
        for number in range(30):
            wish = {
                "cluster_id": "cluster-1",
                "member_uuid": "member-1",
                "members": ["member-1", f"added-{number}"],
                "lost": [f"added-{number - 1}"],
            }
            answer, _ = member.client.ask("view", wish)
            assert answer[:3] == ["view", answer[1], 2 + number]
            sizes.append(
                len(ClusterLog(open_context(settings.url), "default", "c").manifest().lifetimes)
            )
        assert set(sizes) == {2}
        member.hello(view=31)
        assert member.put(b="2")[0] == "ack"
        assert member.values() == {"a": "1", "b": "2"}
