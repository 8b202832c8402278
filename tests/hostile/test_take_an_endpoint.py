"""Attack: listen where an agent listens, or make an agent remove or overwrite the file at the path
of its endpoint."""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent
from imap_wal.agent.transport.endpoint import EndpointLock
from imap_wal.clock import SystemClock
from imap_wal.errors import InvalidSetting, WriterLocked
from imap_wal.write.opening import holder_text
from rewrite_cli.console.failures import LOCKED, exit_code, message
from storage_backends.ownership import user_name
from tests.agent.harness import config, plugin, serving


def agent_of(node: str, endpoint: str, url: str, *, takeover: bool = False) -> AgentConfig:
    about = {
        "url": url,
        "cluster": "c",
        "node": node,
        "endpoint": endpoint,
        "lifetime_timeout_s": 0,
        "start_policy": "partial",
    }
    return AgentConfig.from_mapping(about, takeover=takeover)


@pytest.mark.parametrize("takeover", [False, True])
def test_a_second_agent_at_an_endpoint_is_refused(tmp_path: Path, takeover: bool) -> None:
    """It has changed nothing, with `takeover` either."""
    first = config(tmp_path, "n1")
    with serving(first), plugin(first) as member:
        assert member.put(a="1")[0] == "ack"
        # Also with `takeover`: it is for the agent of the same node, not for another one's
        # endpoint.
        with pytest.raises(
            InvalidSetting,
            match=rf"endpoint {first.endpoint} is held by the agent of node 'n1' of default/c "
            rf"\(process {os.getpid()} ",
        ):
            Agent(agent_of("n2", first.endpoint, first.url, takeover=takeover))
        assert not (tmp_path / "log/default/c/nodes/n2").exists()
        assert member.put(b="2")[0] == "ack"
        with plugin(first, greet=False) as late:
            assert late.stat()["node"] == "n1"


def test_an_agent_started_twice_ends_as_another_writer(tmp_path: Path) -> None:
    """With one configuration; the first one continues."""
    first = config(tmp_path, "n1")
    with serving(first), plugin(first) as member:
        with pytest.raises(WriterLocked) as refused:
            Agent(agent_of("n1", first.endpoint, first.url))
        assert exit_code(refused.value) == LOCKED
        assert f"(process {os.getpid()} " in refused.value.holder
        assert refused.value.holder.endswith(f"which listens at {first.endpoint}")
        assert "--takeover" in message(refused.value)
        assert member.put(a="1")[0] == "ack"


def test_a_takeover_replaces_the_agent_of_its_node(tmp_path: Path) -> None:
    """The successor serves at the same endpoint, also after the former agent ends."""
    first = config(tmp_path, "n1")
    agent = Agent(first)  # it hangs: its loop does not run
    try:
        with (
            serving(agent_of("n1", first.endpoint, first.url, takeover=True)),
            plugin(first) as member,
        ):
            assert member.put(a="1")[0] == "ack"
            agent._router.close()  # the former one ends, and its successor's socket is kept
            with plugin(first, greet=False) as late:
                assert late.stat()["appends"] == 1
            with pytest.raises(InvalidSetting, match="is held by"):
                EndpointLock(first.endpoint, "x", holder_text("x", SystemClock()))
    finally:
        agent.stop()


def test_the_socket_of_an_agent_that_was_killed_is_replaced(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(settings.endpoint.removeprefix("ipc://"))
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"


@pytest.mark.parametrize("what", ["file", "folder", "link", "dangling link", "pipe"])
def test_a_file_that_is_no_socket_stays(tmp_path: Path, what: str) -> None:
    """The error names it."""
    path, kept = tmp_path / "agent.sock", tmp_path / "kept"
    kept.write_text("mine")
    match what:
        case "file":
            path.write_text("mine")
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(kept)
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        case _:
            os.mkfifo(path)
    before = os.lstat(path)
    with pytest.raises(InvalidSetting, match=f"something other than a socket at {path}"):
        Agent(agent_of("n1", f"ipc://{path}", f"file://{tmp_path}/log"))
    assert os.path.samestat(before, os.lstat(path))
    assert kept.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "log").exists()


def test_the_live_socket_of_another_program_stays(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(InvalidSetting, match="a process without an agent's lock listens at"):
            Agent(agent_of("n1", f"ipc://{path}", f"file://{tmp_path}/log"))
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(path))


def test_the_target_of_a_linked_lock_is_not_overwritten(tmp_path: Path) -> None:
    """A link in the place of the lock is refused."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    (tmp_path / "agent.sock.lock").symlink_to(kept)
    with pytest.raises(InvalidSetting, match=r"agent\.sock\.lock"):
        EndpointLock(f"ipc://{tmp_path}/agent.sock", "x", "x (process 1)")
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("endpoint", ["ipc://@everybody", "ipc://*", "ipc://"])
def test_an_endpoint_without_a_file_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidSetting, match="takes the path of a file"):
        EndpointLock(endpoint, "x", "x")


def test_the_socket_is_private_from_the_bind_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask is."""
    settings = config(tmp_path)
    path = settings.endpoint.removeprefix("ipc://")
    seen: list[int] = []
    chmod = os.chmod
    monkeypatch.setattr(
        os, "chmod", lambda *given: (seen.append(os.stat(path).st_mode), chmod(*given))
    )
    before = os.umask(0)  # the widest
    try:
        with serving(settings):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert [mode & 0o077 for mode in seen] == [0]


@pytest.fixture
def another_user() -> Iterator[Path]:
    """A folder in which this process cannot open a file whose mode allows nothing. Root can open
    everything, so the process becomes the user `nobody` meanwhile."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o777)
        before = os.getgroups()
        if root:
            os.setgroups([])
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)
                os.setgroups(before)


def closed(path: Path) -> None:
    me = os.geteuid()
    if me == 65534:
        os.seteuid(0)
        os.chown(path, 0, 0)
    path.chmod(0)
    os.seteuid(me)


def test_a_socket_of_another_user_is_named(another_user: Path) -> None:
    """The error names the owner, and does not say that a process listens there."""
    path = another_user / "agent.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    closed(path)
    owner = re.escape(user_name(os.lstat(path).st_uid))
    with pytest.raises(
        InvalidSetting,
        match=rf"the socket {path} belongs to {owner}, and .* cannot connect .* remove the socket",
    ):
        EndpointLock(f"ipc://{path}", "x", "x (process 1)")
    assert path.is_socket()


def test_a_leftover_lock_of_another_user_is_named(another_user: Path) -> None:
    """The error names the owner."""
    lock = another_user / "agent.sock.lock"
    lock.touch()
    closed(lock)
    owner = re.escape(user_name(os.lstat(lock).st_uid))
    with pytest.raises(
        InvalidSetting, match=rf"the lock file {lock} belongs to {owner}, and .* remove the file"
    ):
        EndpointLock(f"ipc://{another_user}/agent.sock", "x", "x (process 1)")
    with pytest.raises(InvalidSetting, match="name a folder that this user can write to"):
        EndpointLock("ipc:///proc/agent.sock", "x", "x (process 1)")
