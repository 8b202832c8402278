"""A loss of files must not open a log to every cluster: the manifests with its token are lost, and
the log is repaired."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.access.keys import read_token
from imap_wal.agent.config import AgentConfig
from imap_wal.errors import CorruptLog
from tests.agent.harness import config, plugin, serving
from tests.cli.conftest import Run, run
from tests.kit.effort import every

__all__ = ["run"]

CLUSTER = "log/default/c"
CLAIMS = (f"{CLUSTER}/claims/manifest",)


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


@pytest.fixture
def token(run: Run, tmp_path: Path) -> Path:
    assert run("keys", "token", str(tmp_path / "eu.token")).code == 0
    return tmp_path / "eu.token"


def written(settings: AgentConfig, token: Path | None) -> None:
    with serving(settings), plugin(settings, greet=False) as member:
        member.hello(**({"token": read_token(token)} if token else {}))
        assert member.put(a="1")[0] == "ack"


def lose(tmp_path: Path, folders: tuple[str, ...]) -> None:
    for folder in folders:
        shutil.rmtree(tmp_path / folder)


def damage_newest(tmp_path: Path) -> None:
    newest = max((tmp_path / CLUSTER / "claims/manifest").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-9] + b"xxxxxxxxx")


def repaired(run: Run, settings: AgentConfig, tmp_path: Path) -> tuple[AgentConfig, Any]:
    home = tmp_path / "repaired"
    home.mkdir()
    copy = config(home)
    done = run("repair", settings.url, "--to", copy.url, "-o", "json")
    assert done.code == 3, done.err
    return copy, done.json["files"]


def answer(settings: AgentConfig, name: str, token: Path | None) -> list[Any]:
    with (
        serving(settings),
        plugin(settings, greet=False, cluster_id=name, uuid=name, member=name) as member,
    ):
        header, _ = member.client.ask(
            "hello", member.about(**({"token": read_token(token)} if token else {}))
        )
        return header


@every(2)
@pytest.mark.parametrize("loss", ["claims", "newest claims"])
def test_a_repaired_copy_is_closed_until_the_operator_decides(
    run: Run, settings: AgentConfig, token: Path, tmp_path: Path, loss: str
) -> None:
    """No token is accepted, and a claim by force is no decision."""
    written(settings, token)
    if loss == "claims":
        lose(tmp_path, CLAIMS)
    else:
        damage_newest(tmp_path)
    copy, items = repaired(run, settings, tmp_path)
    assert [
        item
        for item in items
        if "/claims" in item["file"]
        and "no cluster can claim the copy before you decide" in item["what"]
    ]
    for given in (None, token):
        refused = answer(copy, "stranger", given)
        assert (refused[0], refused[2]) == (
            "error",
            "not-allowed",
        ) and "not known who may claim it" in refused[3]
    assert run("verify", copy.url).code == 0
    doctor = run("doctor", copy.url)
    assert doctor.code == 3 and "--only-token" in doctor.out
    assert run("claim", copy.url, "-o", "json").json["clusters"][0]["closed"]
    assert run("claim", copy.url, "--force", "--yes").code == 0
    assert answer(copy, "stranger", None)[0] == "error", "a claim by force is no such decision"
    assert run("claim", copy.url, "--only-token", str(token), "--yes").code == 0
    assert answer(copy, "stranger", None)[0] == "error"
    assert answer(copy, "owner", token)[0] == "welcome"


def test_the_operator_may_decide_against_a_token(
    run: Run, settings: AgentConfig, token: Path, tmp_path: Path
) -> None:
    """After `--forget-tokens`, every cluster may claim the copy."""
    written(settings, token)
    lose(tmp_path, CLAIMS)
    copy, _ = repaired(run, settings, tmp_path)
    assert run("claim", copy.url, "--forget-tokens", "--yes").code == 0
    assert answer(copy, "next", None)[0] == "welcome"


def test_a_copy_of_a_log_without_a_token_is_open(
    run: Run, settings: AgentConfig, tmp_path: Path
) -> None:
    """There was no token to lose."""
    written(settings, None)
    lose(tmp_path, CLAIMS)
    copy, items = repaired(run, settings, tmp_path)
    assert not [item for item in items if "before you decide" in item["what"]]
    assert answer(copy, "next", None)[0] == "welcome"


def test_a_lost_token_without_a_claim_is_missed(
    run: Run, settings: AgentConfig, token: Path, tmp_path: Path
) -> None:
    """The token was set before the first claim; the cluster's manifest records that there is
    one."""
    with serving(settings):
        pass
    assert run("claim", settings.url, "--only-token", str(token), "--yes").code == 0
    lose(tmp_path, CLAIMS)
    with (
        pytest.raises(CorruptLog, match="this cluster has a token, but its claims have none"),
        serving(settings),
    ):
        pass
    done = run("verify", settings.url, "-o", "json")
    assert done.code == 3
    assert [
        each["file"] for each in done.json["files"] if "this cluster has a token" in each["what"]
    ] == ["default/c/claims/manifest/0000000000.json"]
    copy, _ = repaired(run, settings, tmp_path)
    assert answer(copy, "stranger", None)[0] == "error"


def test_a_token_that_the_operator_removed_is_not_missed(
    run: Run, settings: AgentConfig, token: Path, tmp_path: Path
) -> None:
    """After `--forget-tokens`, the log is open and `verify` finds nothing."""
    written(settings, token)
    assert run("claim", settings.url, "--forget-tokens", "--yes").code == 0
    assert run("verify", settings.url).code == 0
    assert answer(settings, "next", None)[0] == "welcome"
