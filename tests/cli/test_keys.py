"""`imap-wal keys`, keys in `plugin config` and `doctor`, and the audit of commands."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

import imap_wal
from imap_wal.agent.access import keys
from imap_wal.agent.access.peers import Peer, Right
from imap_wal.agent.config import AgentConfig
from tests.agent.harness import serving
from tests.cli.conftest import Run, plugin_properties
from tests.support import eventually


def mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def made(tmp_path: Path, run: Run) -> Path:
    """A folder with the keys of an agent, a member and a monitor, and the file of clients."""
    folder = tmp_path / "keys"
    before = os.umask(0)  # the modes do not depend on the umask
    try:
        assert (
            run("keys", "new", "agent-1", "member-1", "monitor", "--folder", str(folder)).code == 0
        )
    finally:
        os.umask(before)
    assert (
        run("keys", "allow", str(folder / "clients.toml"), str(folder / "member-1.pub")).code == 0
    )
    assert (
        run(
            "keys",
            "allow",
            str(folder / "clients.toml"),
            str(folder / "monitor.pub"),
            "--right",
            "read",
        ).code
        == 0
    )
    return folder


def test_secret_files_are_for_their_owner_only_and_never_overwritten(made: Path, run: Run) -> None:
    assert mode(made / "agent-1.key") == 0o600
    assert mode(made / "agent-1.pub") == 0o644
    before = (made / "agent-1.key").read_text()
    again = run("keys", "new", "other", "agent-1", "--folder", str(made))
    assert (again.code, "already exists, and was not changed" in again.err) == (2, True)
    assert (made / "agent-1.key").read_text() == before
    assert not (made / "other.key").exists()
    pair = keys.read_secret(made / "agent-1.key")
    shown = run("keys", "show", str(made / "agent-1.key"))
    assert shown.out.strip() == pair.public
    assert pair.secret not in shown.out + shown.err
    assert "secret" not in (made / "agent-1.pub").read_text()
    assert run("keys", "new", "../x", "--folder", str(made)).code == 2


def test_rights_are_granted_changed_listed_and_revoked(made: Path, run: Run) -> None:
    clients = made / "clients.toml"
    rows = json.loads(run("keys", "list", str(clients), "-o", "json").out)["clients"]
    assert [(row["name"], row["rights"]) for row in rows] == [
        ("member-1", ["read", "write", "claim"]),
        ("monitor", ["read"]),
    ]
    assert (
        run(
            "keys",
            "allow",
            str(clients),
            str(made / "monitor.pub"),
            "--right",
            "read",
            "--right",
            "write",
        ).code
        == 0
    )
    assert {peer.name: set(peer.rights) for peer in keys.read_clients(clients).values()}[
        "monitor"
    ] == {Right.READ, Right.WRITE}
    (made / "member-1.pub").write_text(
        (made / "agent-1.pub").read_text().replace("agent-1", "member-1")
    )
    other = run("keys", "allow", str(clients), str(made / "member-1.pub"))
    assert (other.code, "member-1 already has another key" in other.err) == (2, True)
    assert run("keys", "revoke", str(clients), "nobody").code == 2
    assert run("keys", "revoke", str(clients), "monitor").code == 0
    assert [peer.name for peer in keys.read_clients(clients).values()] == ["member-1"]
    assert mode(clients) == 0o644


def test_each_change_of_keys_is_audited(tmp_path: Path, run: Run) -> None:
    clients, public = tmp_path / "clients.toml", tmp_path / "monitor.pub"
    who = f"({os.geteuid()})"

    def lines(*words: str) -> list[str]:
        done = run("keys", *words)
        assert done.code == 0, done.err
        return [line for line in done.err.splitlines() if line.startswith("audit:")]

    (made,) = lines("new", "monitor", "--folder", str(tmp_path))
    key = keys.read_public(public).public
    assert (
        made.startswith(
            f"audit: key made: file='{tmp_path}/monitor.key' name='monitor' key='{key}' by='"
        )
        and who in made
    )
    (allowed,) = lines("allow", str(clients), str(public), "--right", "read", "--right", "claim")
    about = f"file='{clients}' name='monitor' key='{key}' rights='read+claim' by='"
    assert allowed.startswith(f"audit: key allowed: {about}") and who in allowed
    assert lines("list", str(clients)) == lines("show", str(public)) == []
    (revoked,) = lines("revoke", str(clients), "monitor")
    assert revoked.startswith(f"audit: key revoked: {about}") and who in revoked
    (token,) = lines("token", str(tmp_path / "t"))
    secret = keys.read_token(tmp_path / "t")
    assert keys.token_hash(secret) in token and secret not in token and who in token
    refused = run("keys", "revoke", str(clients), "monitor")
    assert refused.code == 2 and "audit:" not in refused.err


def test_two_commands_at_once_do_not_undo_each_other(made: Path, run: Run) -> None:
    clients = made / "clients.toml"
    with keys.changing_clients(clients) as known:
        revoking = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from rewrite_cli.cli import main; main()",
                "keys",
                "revoke",
                str(clients),
                "member-1",
            ],
            stderr=subprocess.PIPE,
        )
        # It waits for the lock, as the kernel shows.
        eventually(
            lambda: any(
                "->" in line and f" {revoking.pid} " in line for line in Path("/proc/locks").open()
            ),
            "the other command waits",
        )
        known["ab" * 32] = Peer("another", frozenset({Right.READ}))
    assert revoking.wait(60) == 0
    assert sorted(peer.name for peer in keys.read_clients(clients).values()) == [
        "another",
        "monitor",
    ]


def test_a_change_that_fails_leaves_the_clients_as_they_were(made: Path, run: Run) -> None:
    clients = made / "clients.toml"
    before = clients.read_bytes()
    assert run("keys", "revoke", str(clients), "monitor", "nobody").code == 2
    assert clients.read_bytes() == before
    (made / ".clients.toml.lock").unlink()
    (made / ".clients.toml.lock").symlink_to(made / "agent-1.key")
    refused = run("keys", "revoke", str(clients), "monitor")
    assert (refused.code, "must be able to lock this file" in refused.err) == (2, True)
    assert clients.read_bytes() == before


def test_a_token_is_random_and_for_its_owner_only(tmp_path: Path, run: Run) -> None:
    for name in "ab":
        made = run("keys", "token", str(tmp_path / name))
        assert (made.code, mode(tmp_path / name)) == (0, 0o600)
        assert keys.read_token(tmp_path / name) not in made.out + made.err
    assert keys.read_token(tmp_path / "a") != keys.read_token(tmp_path / "b")
    assert run("keys", "token", str(tmp_path / "a")).code == 2


def test_the_printed_configuration_has_the_keys_and_asks_for_them(made: Path, run: Run) -> None:
    words = ["plugin", "config", "--agent", "tcp://10.0.0.5:7701"]
    missing = run(*words)
    assert (missing.code, "accepts only connections with keys" in missing.err) == (2, True)
    assert run(*words, "--key-file", "/etc/m.key").code == 2
    printed = run(
        *words,
        "--key-file",
        "/etc/m.key",
        "--agent-key",
        str(made / "agent-1.pub"),
        "--token-file",
        "/etc/c.token",
    )
    assert plugin_properties(yaml.safe_load(printed.out)["hazelcast"]) == {
        "agent": "tcp://10.0.0.5:7701",
        "durable-maps": "*",
        "durable-structures": "warn",
        "agent-key-file": "/etc/m.key",
        "agent-public-key": keys.read_public(made / "agent-1.pub").public,
        "cluster-token-file": "/etc/c.token",
    }


def test_doctor_reports_a_missing_agent_key(made: Path, run: Run, tmp_path: Path) -> None:
    """With a key, it asks the agent."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    about = {
        "url": f"file://{tmp_path}/log",
        "node": "n1",
        "endpoint": endpoint,
        "lifetime_timeout_s": 0,
        "start_policy": "partial",
    }
    settings = AgentConfig.from_mapping(
        {**about, "key": str(made / "agent-1.key"), "clients": str(made / "clients.toml")}
    )
    agent_key = ("--agent-key", str(made / "agent-1.pub"))

    def asked(*words: str) -> dict[str, str]:
        checks = json.loads(run("doctor", "--agent", endpoint, *words, "-o", "json").out)["checks"]
        return {check["name"]: f"{check['status']}: {check['what']}" for check in checks}

    with capture_logs(), serving(settings):
        assert asked("--key-file", str(made / "monitor.key"), *agent_key)["agent"].startswith(
            "ok: node 'n1'"
        )
        # Whichever side ends the handshake first.
        assert "handshake: the agent has keys and this client has none" in asked()["agent"]
        assert (
            "does not admit this user or key"
            in asked("--key-file", str(made / "agent-1.key"), *agent_key)["agent"]
        )
        other = "--key-file", str(made / "monitor.key"), "--agent-key", str(made / "monitor.pub")
        assert (
            "the agent has another key than the one given"
            in run("doctor", "--agent", endpoint, *other).out
        )


def test_a_public_file_given_as_secret_is_named(made: Path, run: Run) -> None:
    public = made / "agent-1.pub"
    public.chmod(0o600)
    config = made / "agent.toml"
    config.write_text(
        f'url = "{made}/log"\nendpoint = "tcp://127.0.0.1:7701"\nkey = "{public}"\n'
        f'clients = "{made}/clients.toml"\n'
    )
    ended = run("agent", "--config", str(config), "--check")
    assert ended.code == 2 and "the file agent-1.key is needed" in ended.err


def test_a_missing_file_of_a_public_key_is_named(run: Run) -> None:
    words = "--agent", "tcp://10.0.0.5:7701", "--key-file", "m.key", "--agent-key", "absent.pub"
    ended = run("plugin", "config", *words)
    assert ended.code == 2 and "absent.pub: No such file" in ended.err


def test_an_agents_configuration_is_checked_with_its_keys(
    made: Path, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "agent.toml"
    text = f'url = "file://{tmp_path}/log"\nendpoint = "tcp://10.0.0.5:7701"\n'
    file.write_text(text)
    refused = run("agent", "--config", str(file), "--check")
    assert (refused.code, "without keys, anyone who can reach this address" in refused.err) == (
        2,
        True,
    )
    file.write_text(text + f'key = "{made}/agent-1.key"\nclients = "{made}/clients.toml"\n')
    assert run("agent", "--config", str(file), "--check").code == 0
    (made / "agent-1.key").chmod(0o644)
    refused = run("agent", "--config", str(file), "--check")
    assert (refused.code, "other users may open it" in refused.err) == (2, True)


def test_drop_prune_and_forget_say_who_did_what(tmp_path: Path, run: Run) -> None:
    url = f"file://{tmp_path}/log"
    for node in ("n1", "n2"):
        with imap_wal.open(url, node=node) as store:
            store.map("orders")["a"] = "1"
    who = f"({os.geteuid()})"
    for words, what in (
        (("archive", url), ""),
        (("rewrite", url), ""),
        (("prune", url), "audit: log pruned: log='default/embedded' files="),
        (
            ("drop", url, "--map", "orders"),
            "audit: map dropped: log='default/embedded' map='orders'",
        ),
        (("forget-node", url, "--node", "n2"), "audit: node forgotten: node='n2'"),
    ):
        if what:
            assert "audit:" not in run(*words, "--dry-run").err
        done = run(*words, *(["--yes"] if what else []))
        assert done.code == 0, done.err
        lines = [line for line in done.err.splitlines() if line.startswith("audit:")]
        assert len(lines) == bool(what)
        assert all(line.startswith(what) and who in line and "log'" in line for line in lines), (
            lines
        )
