"""Attack: as another user of the machine, use the Unix socket of an agent."""

from __future__ import annotations

import math
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from imap_wal.agent import lines as agent_lines
from imap_wal.agent.access.admission import DEFAULT_ENDPOINT, Admission, Users
from imap_wal.agent.config import AgentConfig
from imap_wal.errors import InvalidSetting
from tests.agent.harness import config, plugin, serving
from tests.kit.effort import thorough

OTHER = 65534
ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

ASK = """
import os, sys
from imap_wal.agent.transport.client import AgentClient
from imap_wal.errors import NotAllowed
os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
client = AgentClient(sys.argv[1], 5000)
try:
    print(client.ask("stat")[0][0])
except NotAllowed as error:
    print("NotAllowed:", error)
"""


def asked_as(uid: int, endpoint: str) -> str:
    """The answer to a process of that user."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ASK, endpoint, str(uid)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    ).stdout.strip()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, so that only the agent's own rules can refuse them."""
    with tempfile.TemporaryDirectory(prefix="imap-wal-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def agent_at(folder: Path, **settings: object) -> AgentConfig:
    base = config(folder)
    about = {
        "url": base.url,
        "cluster": "c",
        "node": "n1",
        "lifetime_timeout_s": 0,
        "start_policy": "partial",
    }
    return AgentConfig.from_mapping({**about, "endpoint": f"ipc://{folder}/a.sock", **settings})


@needs_root
def test_another_user_is_refused(open_folder: Path) -> None:
    """The kernel names the user, whatever the mode of the socket is, and the refusal is logged."""
    # The mode admits every user: only the list of users refuses.
    settings = agent_at(open_folder, endpoint_mode="0666", allow_uids=[12345])
    with capture_logs() as lines, serving(settings), plugin(settings) as member:
        assert asked_as(OTHER, settings.endpoint).startswith("NotAllowed: the agent at ipc://")
        assert member.put(a="1")[0] == "ack"
        assert asked_as(0, settings.endpoint) == "stat"
    (refused,) = [line for line in lines if line["event"] == "peer refused"]
    assert (refused["log_level"], refused["reason"]) == ("warning", "not in allow_uids")
    assert f"user {OTHER}, process " in refused["peer"]
    assert any(
        line["event"] == "peer admitted" and "user 0, process " in line["peer"] for line in lines
    )


@needs_root
def test_a_user_of_the_list_may_do_everything(open_folder: Path) -> None:
    settings = agent_at(open_folder, endpoint_mode="0666", allow_uids=[OTHER])
    with serving(settings):
        assert asked_as(OTHER, settings.endpoint) == "stat"


@thorough
@needs_root
def test_repeated_refusals_are_logged_once(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many attempts do not fill the log output."""
    monkeypatch.setattr(agent_lines, "WINDOW_S", math.inf)  # also on a slow machine
    settings = agent_at(open_folder, endpoint_mode="0666", allow_uids=[12345])
    with capture_logs() as lines, serving(settings):
        for _ in range(4):
            assert asked_as(OTHER, settings.endpoint).startswith("NotAllowed")
    assert sum(line["event"] == "peer refused" for line in lines) == 1


def test_the_users_number_is_what_counts() -> None:
    users = Users(frozenset({4_000_007}))
    assert users.judge(4_000_007, 99) == Admission("user 4000007, process 99")
    assert users.judge(40_000_070, 4_000_007).why == "not in allow_uids"


def test_no_user_name_is_looked_up_at_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory service may take minutes to answer, and others wait to connect."""

    def ask_a_server(uid: int) -> object:
        raise AssertionError("a directory service may take minutes")

    settings = config(tmp_path)
    with capture_logs() as lines, serving(settings):
        monkeypatch.setattr(pwd, "getpwuid", ask_a_server)
        with plugin(settings) as member:
            assert member.put(a="1")[0] == "ack"
    assert [line["peer"] for line in lines if line["event"] == "peer admitted"] == [
        f"user {os.geteuid()}, process {os.getpid()}"
    ]


def test_the_default_endpoint_is_a_private_socket(tmp_path: Path) -> None:
    """Only its user may open its folder and the socket."""
    assert (
        AgentConfig.from_mapping({"url": f"file://{tmp_path}/log"}).endpoint
        == DEFAULT_ENDPOINT
        == "ipc:///run/imap-wal/agent.sock"
    )
    settings = agent_at(tmp_path, endpoint=f"ipc://{tmp_path}/run/imap-wal/agent.sock")
    with serving(settings):
        assert stat.S_IMODE(os.stat(tmp_path / "run/imap-wal").st_mode) == 0o700
        assert stat.S_IMODE(os.stat(tmp_path / "run/imap-wal/agent.sock").st_mode) == 0o600


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"endpoint_mode": "0666"},
            "lets every user of this machine connect; name those who may: allow_uids",
        ),
        ({"allow_uids": [-1]}, "allow_uids has -1; it takes user numbers"),
        ({"allow_uids": ["hazelcast"]}, "allow_uids has 'hazelcast'"),
        ({"allow_uids": [True]}, "allow_uids has True"),
        ({"allow_uids": 7}, "it takes a list"),
        ({"key": "/a", "clients": "/b"}, "key and clients are for tcp:// endpoints"),
        (
            {"endpoint": "tcp://127.0.0.1:1", "allow_uids": [7]},
            "allow_uids is for ipc:// endpoints",
        ),
    ],
)
def test_settings_that_would_admit_strangers_are_refused(
    tmp_path: Path, settings: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        agent_at(tmp_path, **settings)
    assert text in str(refused.value)


def test_a_socket_for_a_group_causes_a_warning(tmp_path: Path) -> None:
    """It works; without `allow_uids` the agent warns."""
    settings = agent_at(tmp_path, endpoint_mode="0660")
    assert "every member of the socket's group" in settings.access.doubt
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
    assert agent_at(tmp_path, endpoint_mode="0660", allow_uids=[1]).access.doubt == ""
