"""The members that an agent names in `stat` and in `imap-wal doctor --agent`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from imap_wal.agent.membership.liveness import signs
from imap_wal.agent.membership.operator_claim import take_log
from imap_wal.agent.monitoring.health import why_not_ready
from rewrite_cli.console.check import OK, PROBLEM, WARNING, Check
from rewrite_cli.doctor.agent import agent_checks
from storage_backends import open_store
from tests.agent.harness import config, identity, plugin, report, serving
from tests.support import eventually


def text_of(endpoint: str) -> str:
    (text,) = (each.what for each in agent_checks(endpoint) if each.name == "agent's members")
    return text


def test_stat_names_the_members_that_have_said_hello(tmp_path: Path) -> None:
    """A connection without a hello is not named, and a member that has left is not named."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings, greet=False) as asking:
        assert asking.stat()["members"] == []
        assert text_of(settings.endpoint) == "no member is connected"
        with plugin(settings) as one, plugin(settings, greet=False) as reading:
            reading.hello(purpose="read")
            with plugin(settings, uuid="plugin-2", member="member-2", greet=False) as two:
                two.hello(purpose="read")
                found = {each.pop("member"): each for each in asking.stat()["members"]}
                assert found == {
                    "member-1": {
                        "peer": "local",
                        "session": one.session,
                        "connections": 2,
                        "settling": 0,
                        "superseded": False,
                        "maps": None,
                    },
                    "member-2": {
                        "peer": "local",
                        "session": 0,
                        "connections": 1,
                        "settling": 0,
                        "superseded": False,
                        "maps": None,
                    },
                }
                text = text_of(settings.endpoint)
                assert text.startswith("2 members are connected: ")
                assert f"{identity('member-2')} (local)" in text
            eventually(lambda: len(asking.stat()["members"]) == 1, "member-2 has left")
        eventually(lambda: not asking.stat()["members"], "both have left")


def test_an_agent_is_not_ready_while_its_members_settle(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings) as agent:
        with plugin(settings) as one:
            assert one.client.ask("beat", 7)[0][0] == "beat"
            assert one.stat()["members"][0]["settling"] == 7
            assert why_not_ready(agent.snapshot()) == "members compare 7 partitions with the log"
            assert one.client.ask("beat", 0)[0][0] == "beat"
            assert why_not_ready(agent.snapshot()) == ""
            seconds = agent.snapshot().settling_seconds
            assert 0 < seconds == agent.snapshot().settling_seconds, "it does not grow any more"
            for wrong in (-1, 1.5, True, None):
                assert one.client.ask("beat", wrong)[0][2] == "bad-request"
            assert one.client.ask("beat", 3)[0][0] == "beat"
        eventually(lambda: agent.snapshot().settling == 0, "the member has left")


def checks_of(endpoint: str) -> dict[str, Check]:
    return {each.name: each for each in agent_checks(endpoint)}


def test_doctor_names_maps_that_are_not_durable(tmp_path: Path) -> None:
    """Each member reports what it uses; the names of all members are one list."""
    settings = config(tmp_path)
    with serving(settings) as agent, plugin(settings) as one:
        assert "agent's maps" not in checks_of(settings.endpoint)
        told = report(durable=["orders"], transient=["cache-1"])
        assert one.client.ask("beat", 0, told)[0][0] == "beat"
        check = checks_of(settings.endpoint)["agent's maps"]
        assert (check.status, check.what) == (OK, "durable: orders; transient: cache-1")
        with plugin(settings, uuid="plugin-2", member="member-2") as two:
            told = report(durable=["stock"], unnamed=["left"], structures=['queue "jobs"'])
            told[2] = [3, ["left"]]
            assert two.client.ask("beat", 0, told)[0][0] == "beat"
            assert two.client.ask("beat", 0)[0][0] == "beat", "the report stays"
            found = checks_of(settings.endpoint)
            assert found["agent's maps"].status == PROBLEM
            assert found["agent's maps"].what == (
                "durable: orders, stock; transient: cache-1; "
                "not durable, and in no list: left, 2 more"
            )
            assert found["agent's structures"].status == WARNING
            assert 'queue "jobs"' in found["agent's structures"].what
            assert dict(agent.snapshot().maps) == {
                "durable": 2,
                "transient": 1,
                "unnamed": 3,
                "structures": 1,
            }
        eventually(lambda: agent.snapshot().maps["unnamed"] == 0, "member-2 has left")


def test_a_malformed_report_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as one:
        many = [51, [f"map-{number}" for number in range(51)]]
        none = [0, []]
        for wrong in (
            [none] * 3,
            [none] * 5,
            [many, none, none, none],
            [[1, ["x" * 256]], none, none, none],
            [[-1, []], none, none, none],
            "maps",
        ):
            assert one.client.ask("beat", 0, wrong)[0][2] == "bad-request"
        assert one.stat()["members"][0]["maps"] is None


def test_an_agent_is_ready_after_ready_timeout_s(tmp_path: Path) -> None:
    """Members still compare partitions then, and operations on them wait."""
    settings = replace(config(tmp_path), ready_timeout_s=0)
    with serving(settings) as agent, plugin(settings) as one:
        assert one.client.ask("beat", 7)[0][0] == "beat"
        assert (agent.snapshot().settling, why_not_ready(agent.snapshot())) == (7, "")


def status_of(endpoint: str) -> str:
    (check,) = (each for each in agent_checks(endpoint) if each.name == "agent's members")
    return check.status


@pytest.mark.parametrize("elsewhere", ["operator", "agent"])
def test_idle_members_of_a_superseded_cluster_are_noticed(tmp_path: Path, elsewhere: str) -> None:
    """They stay connected and send beats, but no change. An operator takes the log, or another
    cluster claims it at another agent."""
    settings, other = (config(tmp_path, node, lifetime_timeout_s=0.3) for node in ("n1", "n2"))
    with ExitStack() as stack:
        agent = stack.enter_context(serving(settings))
        old = stack.enter_context(plugin(settings))
        eventually(lambda: signs(open_store(settings.url), "default/c"), "its sign")
        assert (why_not_ready(agent.snapshot()), status_of(settings.endpoint)) == ("", OK)

        take_log(agent._all_logs, dry_run=False)
        if elsewhere == "agent":
            stack.enter_context(serving(other))
            new = stack.enter_context(
                plugin(other, greet=False, cluster_id="cluster-2", uuid="plugin-2")
            )
            eventually(lambda: new.asked()[0] == "welcome", "the next cluster")

        def noticed() -> bool:
            assert old.client.ask("beat")[0][0] == "beat"
            return "restart the connected members" in why_not_ready(agent.snapshot())

        eventually(noticed, "the agent is not ready")
        assert (agent.snapshot().members, agent.snapshot().superseded) == (1, 1)
        assert [each["superseded"] for each in old.stat()["members"]] == [True]
        assert status_of(settings.endpoint) == PROBLEM
        assert f"every change of {identity('member-1')} (local) fails" in text_of(settings.endpoint)


def test_a_member_of_the_next_cluster_makes_an_agent_ready(tmp_path: Path) -> None:
    """Also while a member of the former one is still connected."""
    settings = config(tmp_path, lifetime_timeout_s=0.3)
    with serving(settings) as agent, plugin(settings) as old:
        take_log(agent._all_logs, dry_run=False)
        assert old.put(a="1")[0] == "error"
        assert why_not_ready(agent.snapshot())
        with plugin(settings, greet=False, cluster_id="cluster-2", uuid="plugin-2") as new:
            eventually(lambda: new.asked()[0] == "welcome", "the next cluster")
            assert why_not_ready(agent.snapshot()) == ""
            assert (agent.snapshot().members, agent.snapshot().superseded) == (2, 1)
        eventually(lambda: agent.snapshot().members == 1, "it has left")
        assert why_not_ready(agent.snapshot())


def test_a_view_of_the_same_cluster_supersedes_no_member(tmp_path: Path) -> None:
    """Its idle member says hello only before its next change."""
    one, two = (config(tmp_path, node, lifetime_timeout_s=0.3) for node in ("n1", "n2"))
    with (
        serving(one) as agent,
        serving(two),
        plugin(one, member="a") as idle,
        plugin(two, member="b", uuid="plugin-2") as asking,
    ):
        about = {
            "cluster_id": "cluster-1",
            "member_uuid": "b",
            "members": ["a", "b"],
            "lost": ["c"],
        }
        before = idle.incarnation
        assert asking.client.ask("view", about)[0][0] == "view"
        sign = agent._log.sessions.sign
        assert sign is not None

        def noticed() -> bool:
            assert idle.client.ask("beat")[0][0] == "beat"
            return sign.followed is not None

        eventually(noticed, "the permit of its incarnation is gone")
        assert sign.followed == (before, identity("cluster-1"))
        assert why_not_ready(agent.snapshot()) == ""
        assert [each["superseded"] for each in idle.stat()["members"]] == [False]
