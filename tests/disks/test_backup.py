"""Backups of running agents whose disks cannot see each other. The backup gets only the root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.access import keys
from imap_wal.agent.access.peers import Peer, Right
from imap_wal.agent.config import AgentConfig
from imap_wal.backup import catalogue
from imap_wal.backup.restore import restore_backup
from imap_wal.backup.run import BackupProgress, back_up
from imap_wal.clock import SystemClock
from imap_wal.context import open_context
from imap_wal.errors import MissingNode
from imap_wal.placement import open_store
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.entries.own_disks import tails_with
from storage_backends.local import LocalStore
from tests.agent.harness import config, plugin, serving
from tests.kit.agents import Process
from tests.kit.effort import thorough
from tests.kit.keyed_agents import AGENT, MEMBER, READER
from tests.kit.own_disks import (
    NODES,
    configs,
    kill,
    own_disk_config,
    restored,
    restored_by_reading,
    until_uploaded,
    write,
)
from tests.support import eventually

CLI = [sys.executable, "-m", "rewrite_cli.cli"]


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )


class Writers:
    """A member at each agent, each on its own thread. `acknowledged`: key → value."""

    def __init__(self, settings: dict[str, AgentConfig]) -> None:
        self.acknowledged: dict[str, str] = {}
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(node, config), daemon=True)
            for node, config in settings.items()
        ]

    def _write(self, node: str, config: AgentConfig) -> None:
        try:
            with plugin(config, uuid=f"plugin-{node}", member=f"member-{node}") as member:
                while not self._stop.is_set():
                    number = member.request + 1
                    value = f"{number} {'x' * 500}"
                    assert member.put(**{f"{node}-{number}": value})[0] == "ack"
                    self.acknowledged[f"{node}-{number}"] = value
        except BaseException as error:
            self._errors.append(error)

    def wait_for(self, count: int) -> None:
        """Wait until more than `count` further changes are acknowledged."""
        enough = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) > enough, "more changes", 60)

    @contextmanager
    def writing(self) -> Iterator[None]:
        for each in self._threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in self._threads:
                each.join(60)
        assert not self._errors, self._errors


@thorough
def test_a_backup_of_running_agents_has_what_was_acknowledged(tmp_path: Path) -> None:
    """Members write during the backups; segments are sealed, uploaded and archived meanwhile."""
    settings = configs(tmp_path, upload_interval_s=0.5, archive_interval_s=2)
    processes = [Process(each) for each in settings.values()]
    url, target = settings["n1"].url, tmp_path / "backups"
    writers = Writers(settings)
    before: dict[int, dict[str, str]] = {}
    try:
        with writers.writing():
            for number in (1, 2, 3):
                writers.wait_for(100)
                before[number] = dict(writers.acknowledged)
                made = command("backup", url, target, "-o", "json")
                assert made.returncode == 0, made.stderr
                assert json.loads(made.stdout)["backup"] == number
    finally:
        kill(processes)
    sent = writers.acknowledged
    for number, known in before.items():
        again = tmp_path / f"again-{number}"
        done = command("backup-restore", target, again, "--backup", number)
        assert done.returncode == 0, done.stderr
        found = restored_by_reading(f"file://{again}")
        assert known.items() <= found.items()
        assert found.items() <= sent.items()
        assert command("verify", again).returncode == 0
        assert command("doctor", again).returncode == 0


def test_a_backup_opens_with_and_without_own_disks(tmp_path: Path) -> None:
    """With new, empty disks nothing is missing: the tails are in the root. And a disk of this new
    log that is lost is noticed."""
    settings = configs(tmp_path)
    processes = [Process(each) for each in settings.values()]
    try:
        written = write(settings)
        assert command("backup", settings["n1"].url, tmp_path / "backups").returncode == 0
    finally:
        kill(processes)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        own = ["--wal-dir-is-local"] if name == "b" else []
        done = command("backup-restore", tmp_path / "backups", tmp_path / name / "root", *own)
        assert done.returncode == 0, done.stderr
    shared = config(tmp_path, "n1", url=f"file://{tmp_path}/a/root")
    with serving(shared), plugin(shared, cluster_id="cluster-2", uuid="second") as member:
        assert member.values() == written
        assert member.put(after="1")[0] == "ack"
    assert restored_by_reading(f"file://{tmp_path}/a/root") == {**written, "after": "1"}
    settings = configs(tmp_path / "b")
    processes = [Process(each) for each in settings.values()]
    try:
        assert restored(settings["n2"]) == written
        with plugin(settings["n2"], cluster_id="cluster-2", uuid="second") as member:
            assert member.put(after="1")[0] == "ack"
    finally:
        kill(processes)
    for file in (tmp_path / "b" / "disk-n2").rglob("wal/*"):
        file.unlink()
    lost = pytest.raises(MissingNode, match="its disk is new or another one")
    with lost, serving(settings["n2"]):
        pass


@thorough
def test_a_second_backup_copies_only_what_is_new(tmp_path: Path) -> None:
    settings = own_disk_config(tmp_path, "n1")
    with serving(settings), plugin(settings) as member:
        for number in range(200):
            assert member.put(**{f"k{number}": os.urandom(500).hex()})[0] == "ack"
        first, second = (
            json.loads(command("backup", settings.url, tmp_path / "backups", "-o", "json").stdout)
            for _ in range(2)
        )
    assert first["copied_bytes"] > 200_000
    assert second["bytes"] == first["bytes"]
    assert second["copied_bytes"] == 0


def test_an_agent_that_does_not_run_is_named(tmp_path: Path) -> None:
    settings = configs(tmp_path)
    processes = [Process(each) for each in settings.values()]
    write(settings)
    until_uploaded(tmp_path, *NODES)
    processes.pop(1).end(signal.SIGKILL)
    try:
        refused = command("backup", settings["n1"].url, tmp_path / "backups")
    finally:
        kill(processes)
    assert refused.returncode == 1
    text = " ".join(refused.stderr.split())
    assert "node 'n2': all entries in segments" in text
    assert f"no agent listens at {settings['n2'].tail_endpoint}" in text
    assert "of node 'n2' are on its own disk alone; its last upload was" in text
    assert "start the agent of this node with its disk" in text
    assert not catalogue.numbers(LocalStore(str(tmp_path / "backups")))


def test_an_agent_killed_during_a_backup_is_named(tmp_path: Path) -> None:
    """Nothing appears under the final name of a backup. The next run copies the rest."""
    settings = configs(tmp_path)
    processes = {node: Process(each) for node, each in settings.items()}
    written = write(settings)
    context = open_context(settings["n1"].url, tails=tails_with(None))
    log = ClusterLog(context, "default", "c")
    target = LocalStore(str(tmp_path / "backups"))

    def killed(progress: BackupProgress) -> None:
        if "n3" in processes and progress.copied_bytes:
            processes.pop("n3").end(signal.SIGKILL)

    def backup(**more: Any) -> int:
        return back_up([log], target, clock=SystemClock(), holder="test", **more).backup.number

    try:
        with pytest.raises(MissingNode, match=r"node 'n3': .*no agent listens at"):
            backup(progress=killed)
        assert "n3" not in processes
        assert not catalogue.numbers(target)
        assert target.list("chunks")
        processes["n3"] = Process(settings["n3"])
        number = eventually(lambda: _made(backup), "the agent is asked again")
    finally:
        kill(list(processes.values()))
        context.store.close()
    again = open_store(f"file://{tmp_path}/again")
    restore_backup(target, catalogue.read(target, number), again)
    assert restored_by_reading(f"file://{tmp_path}/again") == written


def _made(backup: Any) -> int:
    """The number of a backup; 0: the agent, which was away, is not asked yet."""
    try:
        return int(backup())
    except MissingNode:
        return 0


@thorough
def test_a_backup_needs_a_key_that_may_read(tmp_path: Path) -> None:
    for pair in (AGENT, READER, MEMBER):
        keys.write_new(tmp_path / f"{pair.name}.key", pair.text(), 0o600)
    clients = {
        READER.public: Peer("reader", frozenset({Right.READ})),
        MEMBER.public: Peer("member", frozenset({Right.WRITE})),
    }
    keys.write_clients(tmp_path / "clients.toml", clients)
    files = {"key": str(tmp_path / "agent-1.key"), "clients": str(tmp_path / "clients.toml")}
    settings = own_disk_config(tmp_path, "n1", changes=files)
    target = tmp_path / "backups"
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        wrong = ("--key-file", tmp_path / "member-1.key")
        for key, why in (((), "answers only with --key-file"), (wrong, "no right 'read'")):
            refused = command("backup", settings.url, target, *key)
            assert refused.returncode == 1
            assert why in " ".join(refused.stderr.split())
        made = command("backup", settings.url, target, "--key-file", tmp_path / "reader.key")
        assert made.returncode == 0, made.stderr
        assert "acknowledged before 20" in made.stdout
