"""A wrong configuration of an agent is refused, with the file and the setting."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent
from imap_wal.errors import InvalidSetting
from rewrite_cli import cli
from tests.agent.harness import config, serving


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("", "url is missing"),
        ("url = 'file:///x'\nendpont = 'tcp://h:1'", "unknown setting endpont"),
        ("url = 'file:///x'\n[log]\nsegment_size = 1", r"unknown setting log\.segment_size"),
        ("url = 'file:///x'\ndurability = 'os'", r"durability belongs under \[log\]"),
        ("url = 'file:///x'\n[log]\nnode = 'n1'", "node belongs above the tables"),
        ("url = 'file:///x'\nendpoint = 'udp://h:1'", "endpoint is 'udp://h:1'"),
        ("url = 'file:///x'\nendpoint = 'tcp://127.0.0.1'", "takes ipc:///path or tcp://host:port"),
        ("url = 'file:///x'\nendpoint = 'ipc://'", "takes ipc:///path or tcp://host:port"),
        (
            "url = 'file:///x'\n[log]\ndurability = 'maybe'",
            "durability is 'maybe'; it takes one of always",
        ),
        ("url = 'file:///x'\n[log]\nring_slots = 3", "ring_slots is 3"),
        ("url = ", "not TOML"),
    ],
)
def test_a_wrong_configuration_names_file_and_key(tmp_path: Path, toml: str, says: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(toml)
    with pytest.raises(InvalidSetting, match=says) as raised:
        AgentConfig.from_toml(file)
    assert str(file) in str(raised.value)


OWN_DISK = "wal_dir = '/disk'\nwal_dir_is_local = true\n"


@pytest.mark.parametrize(
    "setting",
    [
        "endpoint = 'tcp://127.0.0.1:{port}'",
        OWN_DISK + "tail_endpoint = 'tcp://127.0.0.1:{port}'",
        OWN_DISK
        + "tail_endpoint = 'tcp://127.0.0.1:7702'\ntail_address = 'tcp://{{node}}.example:{port}'",
        "http_address = '127.0.0.1:{port}'",
        "http_address = '[::1]:{port}'",
        "otlp_endpoint = 'http://localhost:{port}'",
        "otlp_endpoint = 'https://[::1]:{port}/traces'",
    ],
)
def test_each_port_is_at_most_65535(tmp_path: Path, setting: str) -> None:
    """A larger port would lose its upper bits: the agent would listen at another one."""
    file = tmp_path / "agent.toml"
    name = setting.format(port=1).splitlines()[-1].partition(" ")[0]
    start = "url = 'file:///x'\nnode = 'n1'\n"
    file.write_text(start + setting.format(port=65535))
    AgentConfig.from_toml(file)
    for port in (65536, 77020, 2**32 + 7701):
        file.write_text(start + setting.format(port=port))
        with pytest.raises(InvalidSetting, match=rf"{name} is '.*:{port}.*'; its port is {port}, "):
            AgentConfig.from_toml(file)


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ("endpoint = 'tcp://127.0.0.1:0'", True),
        ("endpoint = 'tcp://127.0.0.1:*'", True),
        ("http_address = '127.0.0.1:0'", True),
        (OWN_DISK + "tail_endpoint = 'tcp://127.0.0.1:0'", False),
        ("otlp_endpoint = 'http://localhost:0'", False),
        ("otlp_endpoint = 'http://:4318'", False),
        ("otlp_endpoint = 'http://localhost:port'", False),
    ],
)
def test_only_an_own_address_takes_any_port(tmp_path: Path, setting: str, allowed: bool) -> None:
    """Others must know the port of the other ones."""
    file = tmp_path / "agent.toml"
    file.write_text(f"url = 'file:///x'\n{setting}")
    with nullcontext() if allowed else pytest.raises(InvalidSetting, match=r"(tail|otlp)_endpoint"):
        AgentConfig.from_toml(file)


TAIL = "wal_dir_is_local = true\ntail_endpoint = 'tcp://127.0.0.1:7702'\n"


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (TAIL + "url = '/logs'\nwal_dir = 'file:///logs/'", "wal_dir and url are both"),
        (TAIL + "url = 's3://b/logs'\nwal_dir = 's3://b/logs/'", "wal_dir and url are both"),
        (TAIL + "url = '/logs'\nwal_dir = 'memory://disk'", "wal_dir is 'memory://disk'"),
        (
            TAIL + "url = '/logs'\nwal_dir = '/disk'\ntail_address = 'tcp://{nod}.example:7702'",
            "tail_address is 'tcp://{nod}.example:7702'; the only placeholder",
        ),
        ("url = '/logs'\nnode = ''", 'node is ""'),
        ("url = '/logs'\ncluster = ''", 'cluster is ""'),
        ("url = '/logs'\nnamespace = ''", 'namespace is ""'),
        (f"url = '/logs'\nnode = '{'n' * 300}'", "the name of a node takes 300 bytes"),
        ("url = '/logs'\nupload_interval_s = nan", "upload_interval_s is nan"),
    ],
)
def test_a_check_refuses_what_cannot_work(tmp_path: Path, toml: str, says: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(toml)
    with CliRunner().isolation() as (_, error, _), pytest.raises(SystemExit) as ended:
        cli.main(["agent", "--check", "--config", str(file)])
    assert ended.value.code == 2
    assert says in " ".join(error.getvalue().decode().split())


def test_a_link_to_the_root_is_no_own_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").symlink_to(tmp_path / "root")
    with pytest.raises(InvalidSetting, match="wal_dir and url are both"):
        AgentConfig(
            url=str(tmp_path / "root"),
            wal_dir=str(tmp_path / "disk"),
            wal_dir_is_local=True,
            tail_endpoint="tcp://127.0.0.1:7702",
        )


def test_a_missing_configuration_file_is_named(tmp_path: Path) -> None:
    """The error has the path."""
    with pytest.raises(InvalidSetting, match=r"missing\.toml: No such file"):
        AgentConfig.from_toml(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    "toml",
    [
        "url = 7",
        "url = 'file:///x'\nnode = 5",
        "url = 'file:///x'\n[log]\nsegment_bytes = 'big'",
        "url = 'file:///x'\nlog = 5",
        "url = 'file:///x'\nendpoint = 1",
    ],
)
def test_a_setting_of_the_wrong_type_is_invalid(tmp_path: Path, toml: str) -> None:
    """It raises `InvalidSetting`, not an unexpected error."""
    file = tmp_path / "agent.toml"
    file.write_text(toml)
    with pytest.raises(InvalidSetting):
        AgentConfig.from_toml(file)


def test_an_endpoint_in_use_is_named(tmp_path: Path) -> None:
    """The log is released again, so a second attempt gets the same error."""
    first = config(tmp_path, "n1", url="memory://endpoint-taken")
    with serving(
        AgentConfig.from_mapping(
            {"url": first.url, "node": "n1", "endpoint": "tcp://127.0.0.1:17701"}
        )
    ):
        for _ in range(2):
            with pytest.raises(InvalidSetting, match=r"tcp://127\.0\.0\.1:17701"):
                Agent(
                    AgentConfig.from_mapping(
                        {"url": first.url, "node": "n2", "endpoint": "tcp://127.0.0.1:17701"}
                    )
                )


def test_the_agent_command_has_exit_codes_for_refusals(tmp_path: Path) -> None:
    """Exit code 2 for a wrong configuration, and 4 for a locked log."""
    imap_wal = [sys.executable, "-m", "rewrite_cli.cli"]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("url = 'file:///x'\nnod = 'x'")
    run = subprocess.run(
        [*imap_wal, "agent", "--config", str(wrong)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 2, run.stderr
    assert "unknown setting nod" in run.stderr
    held = config(tmp_path)
    right = tmp_path / "right.toml"
    right.write_text(
        f"url = '{held.url}'\ncluster = 'c'\nnode = 'n1'\nendpoint = 'ipc://{tmp_path}/other.sock'"
    )
    with serving(held):
        run = subprocess.run(
            [*imap_wal, "agent", "--config", str(right)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 4, run.stderr
    assert "imap-wal agent at" in run.stderr
