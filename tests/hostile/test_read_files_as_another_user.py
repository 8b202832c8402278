"""Attack: another user of the machine reads a log or reaches its agent."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.agent.access import keys
from imap_wal.agent.access.peers import Peer, Right
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.transport.gate import new_pair
from imap_wal.errors import InvalidSetting
from imap_wal.placement import open_store
from rewrite_cli.cli import group
from storage_backends.location import Location
from storage_backends.testing import check_segment_store
from tests.agent.harness import plugin, serving
from tests.kit.effort import every

AGENT = 64123
"""The user of the agent."""
UNIT = Path(__file__).parents[2] / "docs/reference/imap-wal-agent.service"


class RunAsAgent:
    """Runs a statement about `agent/access/keys.py` as the agent's user; "" or the error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, statement: str) -> str:
        script = (
            "import os, sys\nfrom imap_wal.agent.access.keys import read_clients, read_secret\n"
            f"os.setgroups([]), os.setgid({AGENT}), os.setuid({AGENT})\n"
            f"try:\n    {statement}\nexcept Exception as error:\n    print(error, end='')\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        ended = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env=environment,
        )
        return ended.stdout


@pytest.fixture
def run_as_agent() -> Iterator[RunAsAgent]:
    with tempfile.TemporaryDirectory(prefix="imap-wal-") as folder:
        os.chmod(folder, 0o755)
        yield RunAsAgent(Path(folder))


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> dict[str, set[int]]:
    """The modes of all files and folders, including the root."""
    found: dict[str, set[int]] = {"files": set(), "folders": set()}
    for path in [root, *root.rglob("*")]:
        found["folders" if path.is_dir() else "files"].add(stat.S_IMODE(path.stat().st_mode))
    return found


@every(5)
@pytest.mark.parametrize(
    ("file_mode", "files", "folders"),
    [("", 0o600, 0o700), ("0640", 0o640, 0o750), ("0660", 0o660, 0o770), ("644", 0o644, 0o755)],
)
@pytest.mark.parametrize("kind", ["file", "objects+file"])
def test_every_file_and_folder_has_the_given_mode(
    tmp_path: Path, umask: int, kind: str, file_mode: str, files: int, folders: int
) -> None:
    """Whatever the umask is."""
    options: dict[str, Any] = {"file_mode": file_mode} if file_mode else {}
    with imap_wal.open(
        f"{kind}://{tmp_path}/root", node="n", wal_dir=f"{kind}://{tmp_path}/fast", **options
    ) as store:
        store.map("m").update(dict.fromkeys(range(100), "x" * 100))
        store.archive()
        store.map("m")["more"] = 1
        for folder in ("root", "fast"):
            assert modes(tmp_path / folder) == {"files": {files}, "folders": {folders}}
    wide = ["--file-mode", file_mode] if file_mode else []
    done = CliRunner().invoke(
        group, [*wide, "rewrite", f"{kind}://{tmp_path}/root"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert modes(tmp_path / "root") == {"files": {files}, "folders": {folders}}


def test_a_store_with_another_file_mode_keeps_its_promises(tmp_path: Path) -> None:
    """All checks of a storage pass with `file_mode`."""
    place = Location(str(tmp_path / "log"), file_mode=0o660)
    check_segment_store(open_store(place), reopen=lambda: open_store(place))
    assert modes(tmp_path / "log")["folders"] == {0o770}


@pytest.mark.parametrize(
    "file_mode", ["0400", "0777", "640 ", "", "rw", "0o640", "1600", 416, None, "0060"]
)
def test_an_invalid_mode_is_refused(file_mode: object) -> None:
    with pytest.raises(InvalidSetting, match="file_mode is"):
        imap_wal.Settings(file_mode=file_mode)  # type: ignore[arg-type]


@every(2)
def test_the_modes_of_the_agents_log_and_socket(tmp_path: Path, umask: int) -> None:
    for number, (endpoint_mode, expected) in enumerate(
        (("0600", 0o600), ("0660", 0o660), ("0620", 0o620), ("0666", 0o666))
    ):
        entered = {0o600: 0o700, 0o666: 0o755}.get(expected, 0o750)
        folder = tmp_path / str(number) / "deep"
        about = {
            "url": f"{folder}/log",
            "node": "n",
            "endpoint": f"ipc://{folder}/run/a.sock",
            "endpoint_mode": endpoint_mode,
            "allow_uids": [os.geteuid()],
            "start_policy": "partial",
            "lifetime_timeout_s": 0,
        }
        settings = AgentConfig.from_mapping(about)
        with serving(settings), plugin(settings) as member:
            assert member.put(a="1")[0] == "ack"
            assert modes(folder / "log") == {"files": {0o600}, "folders": {0o700}}
            assert stat.S_IMODE((folder / "run/a.sock").stat().st_mode) == expected
            assert modes(folder / "run")["folders"] == {entered}
            assert stat.S_IMODE((folder / "run/a.sock.lock").stat().st_mode) == 0o600


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("network", [False, True])
def test_the_unit_exposes_little(tmp_path: Path, network: bool) -> None:
    text = UNIT.read_text().replace("/opt/imap-wal/bin/imap-wal", "/bin/true")
    if network:  # as its comment says
        lines = [
            line
            for line in text.splitlines()
            if line not in ("IPAddressDeny=any", "RestrictAddressFamilies=AF_UNIX")
        ]
        text = "\n".join(lines).replace("# RestrictAddressFamilies=", "RestrictAddressFamilies=")
    unit = tmp_path / "imap-wal-agent.service"
    unit.write_text(text)
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr
    assert {
        "User=imap-wal",
        "UMask=0077",
        "StateDirectoryMode=0700",
        "ProtectSystem=strict",
    } <= set(text.splitlines())


@every(5)
@pytest.mark.parametrize(
    ("root", "namespace", "files"),
    [
        (0o700, 0o700, 0o600),
        (0o750, 0o750, 0o640),
        (0o770, 0o770, 0o660),
        (0o755, 0o700, 0o600),
        (0o777, 0o777, 0o664),
        (0o700, 0o755, 0o600),
    ],
)
def test_commands_keep_the_modes_of_a_log(
    tmp_path: Path, umask: int, root: int, namespace: int, files: int
) -> None:
    """No user loses access, and none gets it."""
    place = tmp_path / "root"
    with imap_wal.open(str(place), node="n") as store:
        store.map("m")["a"] = 1
    place.chmod(root)
    (place / "default").chmod(namespace)
    done = CliRunner().invoke(group, ["rewrite", str(place)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    made = list(place.rglob("snapshot/**/*.parquet"))
    assert made and {stat.S_IMODE(path.stat().st_mode) for path in made} == {files}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in made} == {
        files | 0o100 | (files & 0o044) >> 2
    }
    new = tmp_path / "new"
    done = CliRunner().invoke(
        group, ["restore", str(place), "--to", str(new)], catch_exceptions=False
    )
    if new.exists():
        assert modes(new) == {"files": {0o600}, "folders": {0o700}}


def test_the_group_of_the_socket_reads_no_secrets() -> None:
    """The member is in the agent's group: its configuration and credentials belong to root, and
    systemd passes copies to the agent."""
    unit = UNIT.read_text()
    lines = unit.splitlines()
    assert "LoadCredential=agent.toml:/etc/imap-wal/agent.toml" in lines
    assert "# LoadCredential=credentials.toml:/etc/imap-wal/credentials.toml" in lines
    starts = [line for line in lines if line.removeprefix("# ").startswith("ExecStart=")]
    assert len(starts) == 2 and not any("/etc/" in line for line in starts)
    assert "#   chown -R root:root /etc/imap-wal; chmod 0755 /etc/imap-wal" in lines
    assert any(line.startswith("#   cd /etc/imap-wal; chmod 0600 agent.toml  ") for line in lines)
    # A file that is read again when it changes is no copy, and the agent's user can read it.
    assert "# LoadCredential=agent-1.key:/etc/imap-wal/agent-1.key" in lines
    assert '#   clients = "/etc/imap-wal/clients.toml"' in lines
    assert not any("LoadCredential=clients" in line or "*.toml" in line for line in lines)
    for text in (unit, (UNIT.parents[1] / "security.md").read_text()):
        assert "root:imap-wal" not in text and "0640 with the group" not in text
        assert "LoadCredential=" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_units_user_can_read_its_files(run_as_agent: RunAsAgent) -> None:
    """As the unit's comments say: root's files in /etc, and the copies that systemd makes of two of
    them."""
    etc, credentials = run_as_agent.folder / "etc", run_as_agent.folder / "credentials"
    etc.mkdir(mode=0o755)
    credentials.mkdir(mode=0o755)
    pair = new_pair("agent-1")
    keys.write_new(etc / "agent-1.key", pair.text(), 0o600)
    keys.write_clients(etc / "clients.toml", {pair.public: Peer("member-1", frozenset(Right))})
    keys.write_new(
        credentials / "owned.key", pair.text(), 0o400
    )  # without access lists, the user owns systemd's copy
    os.chown(credentials / "owned.key", AGENT, AGENT)
    keys.write_new(
        credentials / "listed.key", pair.text(), 0o440
    )  # with one, root owns it, and the list is shown as the group
    os.chown(credentials / "listed.key", 0, AGENT)
    for name in ("owned.key", "listed.key"):
        assert (
            run_as_agent(
                f"read_secret({str(credentials / name)!r}); "
                f"read_clients({str(etc / 'clients.toml')!r})"
            )
            == ""
        )
    assert "Permission denied" in run_as_agent(f"read_secret({str(etc / 'agent-1.key')!r})")
    (etc / "clients.toml").chmod(0o600)  # what the comments said before
    assert "Permission denied" in run_as_agent(f"read_clients({str(etc / 'clients.toml')!r})")
