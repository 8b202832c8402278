"""Attack: end the lifetime of a running cluster by a hello with another cluster id, or leave its
members out by a view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from imap_wal.agent.access.keys import read_token, token_hash
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.claims import Greeting
from imap_wal.errors import InvalidSetting
from rewrite_cli.cli import main
from tests.agent.harness import Plugin, config, plugin, serving

TOKEN, OTHER = "t" * 32, "o" * 64


def answer(peer: Plugin, **about: Any) -> list[Any]:
    header, _ = peer.client.ask("hello", peer.about(**about))
    return [header[0], *header[2:]]


def refusal(peer: Plugin, **about: Any) -> str:
    kind, code, text = answer(peer, **about)
    assert (kind, code) == ("error", "not-allowed")
    return str(text)


def settings_of(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


def test_a_stranger_without_the_token_claims_nothing(tmp_path: Path) -> None:
    """Neither by a hello with another cluster id, nor by a view; the cluster continues."""
    settings = settings_of(tmp_path)
    with (
        capture_logs() as lines,
        serving(settings),
        plugin(settings, greet=False) as member,
        plugin(settings, greet=False, uuid="s") as stranger,
    ):
        member.hello(token=TOKEN)
        assert member.put(a="1")[0] == "ack"
        assert "did not send it" in refusal(stranger, cluster_id="mine", member_uuid="m")
        assert "is not a token of this log" in refusal(
            stranger, cluster_id="mine", member_uuid="m", token=OTHER
        )
        assert "is not a token of this log" in refusal(
            stranger, token=OTHER
        )  # also of this cluster
        # A view that leaves the member out, by a peer that knows the cluster id from `stat`.
        known = stranger.stat()["claim"]["cluster_id"]
        assert answer(stranger, cluster_id=known, member_uuid="m")[0] == "welcome"
        header, _ = stranger.client.ask(
            "view",
            {"cluster_id": known, "member_uuid": "m", "members": ["m"], "lost": ["member-1"]},
        )
        assert (header[0], header[2]) == ("error", "not-allowed")
        assert member.put(b="2")[0] == "ack"
        assert member.stat()["claim"]["incarnation"] == 1
        assert member.values() == {"a": "1", "b": "2"}
    assert sum(line["event"] == "log claimed" for line in lines) == 1
    refused = [line for line in lines if line["event"] == "request refused"]
    assert len(refused) == 4
    assert all(TOKEN not in str(line) and OTHER not in str(line) for line in lines)


def test_the_next_cluster_claims_with_the_token(tmp_path: Path) -> None:
    """The token is still needed after a restart of the agent; the storage has only its hash."""
    settings = settings_of(tmp_path)
    with serving(settings), plugin(settings, greet=False) as member:
        member.hello(token=TOKEN)
        assert member.put(a="1")[0] == "ack"
    with (
        serving(settings),
        plugin(settings, greet=False, cluster_id="next", uuid="p2", member="m2") as member,
    ):
        assert "did not send it" in refusal(member)
        assert member.hello(token=TOKEN)["incarnation"] == 2
        assert member.values() == {"a": "1"}
        header, _ = member.client.ask(
            "view", {"cluster_id": "next", "member_uuid": "m2", "members": ["m2"], "lost": ["m3"]}
        )
        assert header[0] == "view", header
    claims = sorted((tmp_path / "log/default/c/claims/manifest").glob("*.json"))
    assert f'"{token_hash(TOKEN)}"' in claims[-1].read_text()
    assert TOKEN not in "".join(file.read_text() for file in claims)


def test_a_log_without_a_token_gets_the_next_clusters_token(tmp_path: Path) -> None:
    """Until then every cluster may claim it, and the agent warns."""
    settings = settings_of(tmp_path)
    with capture_logs() as lines, serving(settings), plugin(settings, greet=False) as member:
        member.hello()
        assert member.put(a="1")[0] == "ack"
        with plugin(settings, greet=False, cluster_id="two", uuid="p2", member="m2") as second:
            assert second.hello()["incarnation"] == 2
        # A member that joins with a token changes nothing: members without it could not claim a
        # view.
        with plugin(settings, greet=False, cluster_id="two", uuid="p3", member="m3") as third:
            assert third.hello(token=TOKEN)["incarnation"] == 2
        with plugin(settings, greet=False, cluster_id="three", uuid="p4", member="m4") as fourth:
            assert fourth.hello(token=TOKEN)["incarnation"] == 3
        with plugin(settings, greet=False, cluster_id="four", uuid="p5", member="m5") as fifth:
            assert "did not send it" in refusal(fifth)
    assert any("this log has no token" in line["event"] for line in lines)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def token_file(tmp_path: Path, name: str) -> Path:
    assert run("keys", "token", str(tmp_path / name)) == 0
    return tmp_path / name


def test_an_operator_can_replace_or_remove_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it is replaced, both tokens are valid."""
    settings = settings_of(tmp_path)
    old, new = token_file(tmp_path, "old.token"), token_file(tmp_path, "new.token")
    names = iter(range(100))

    def claims_with(file: Path | None) -> bool:
        name = f"cluster-{next(names)}"
        with (
            serving(settings),
            plugin(settings, greet=False, cluster_id=name, uuid=name, member=name) as member,
        ):
            return bool(answer(member, token=read_token(file) if file else "")[0] == "welcome")

    assert claims_with(old)
    assert not claims_with(new)
    assert run("claim", settings.url, "--add-token", str(new)) == 0
    assert claims_with(old)
    assert claims_with(new)
    assert run("claim", settings.url, "--only-token", str(new), "--yes") == 0
    assert not claims_with(old)
    assert claims_with(new)
    assert run("claim", settings.url, "--force", "--yes") == 0  # the token remains
    assert not claims_with(None)
    assert run("claim", settings.url, "--forget-tokens", "--yes") == 0
    assert claims_with(None)
    said = capsys.readouterr().err
    for what in ("token added", "tokens replaced", "log claimed", "tokens forgotten"):
        assert f"audit: {what}: " in said
    assert read_token(old) not in said


def test_a_token_that_could_be_guessed_or_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t"
    for text in ("short", "x" * 31, "x" * 201, "x" * 31 + " " + "x" * 31, "ü" * 40):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(
            InvalidSetting, match="a token has 32 to 200 visible ASCII characters"
        ) as refused:
            read_token(file)
        assert text not in str(refused.value)
    file.write_text("x" * 64)
    file.chmod(0o604)
    with pytest.raises(InvalidSetting, match="other users may open it"):
        read_token(file)
    assert TOKEN not in repr(Greeting("c", "m", "p", 0, TOKEN))
