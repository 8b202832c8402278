"""The members that an agent names in `stat` and in `imap-wal doctor --agent`."""

from __future__ import annotations

from pathlib import Path

from rewrite_cli.doctor.agent import agent_checks
from tests.agent.harness import config, identity, plugin, serving
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
                    "member-1": {"peer": "local", "session": one.session, "connections": 2},
                    "member-2": {"peer": "local", "session": 0, "connections": 1},
                }
                text = text_of(settings.endpoint)
                assert text.startswith("2 members are connected: ")
                assert f"{identity('member-2')} (local)" in text
            eventually(lambda: len(asking.stat()["members"]) == 1, "member-2 has left")
        eventually(lambda: not asking.stat()["members"], "both have left")
