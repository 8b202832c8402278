"""A log that continues without acknowledged changes, because the operator has accepted their loss,
while the member that made them runs."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.config import AgentConfig
from imap_wal.segment.reader import SegmentReader
from storage_backends import open_store
from tests.agent.harness import Plugin, config
from tests.kit.agents import Process
from tests.kit.halves import greet, view
from tests.kit.own_disks import own_disk_config
from tests.kit.repairs import flip, repaired
from tests.support import segments


def _another_disk(folder: Path) -> AgentConfig:
    place = f"file://{folder}/wal"
    return replace(config(folder, recovery_policy="partial"), wal_dir=place)


def _own_disk(folder: Path) -> AgentConfig:
    return own_disk_config(folder, "n1", recovery_policy="partial")


def _point_in_time(folder: Path) -> AgentConfig:
    return config(folder, recovery_mode="point-in-time")


def _empty(settings: AgentConfig) -> None:
    disk = Path(settings.wal_dir.removeprefix("file://"))
    shutil.rmtree(disk)
    disk.mkdir()


def _damage(settings: AgentConfig) -> None:
    """In a frame before others that were synced."""
    store = open_store(settings.url)
    (path,) = segments(store)
    first, second, *_ = SegmentReader(store, path).whole_frames()
    flip(Path(settings.url.removeprefix("file://"), path), (first.offset + second.offset) // 2)


def _repair(settings: AgentConfig) -> None:
    """The log is replaced by its repaired copy."""
    _damage(settings)
    copy, _ = repaired(open_store(settings.url), "accepted")
    root = Path(settings.url.removeprefix("file://"))
    shutil.rmtree(root)
    for file in copy.list(""):
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(copy.read(file.path))


LOSSES: dict[str, tuple[Callable[[Path], AgentConfig], Callable[[AgentConfig], Any]]] = {
    "another-disk": (_another_disk, _empty),
    "own-disk": (_own_disk, _empty),
    "point-in-time": (_point_in_time, _damage),
    "repaired-copy": (config, _repair),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_running_member_continues_after_an_accepted_loss(tmp_path: Path, loss: str) -> None:
    """It gets a new session. No answer says how much of the former one is in the log: the plug-in
    would miss what was acknowledged, and refuse the log as an older copy."""
    make, lose = LOSSES[loss]
    settings = make(tmp_path)
    process = Process(settings)
    member = Plugin(settings.endpoint, "X", "plugin of a", member="a")
    try:
        former = member.hello()["session"]
        for number in range(3):
            assert member.put(**{f"lost-{number}": "1"})[0] == "ack"
        process.end(signal.SIGKILL)
        lose(settings)
        process = Process(settings)
        again = greet(member)[1]
        assert again["session"] not in (0, former), "it would have an older copy's last request"
        assert (again["last_request"], again["former"]) == (0, [])
        assert member.put(kept="1")[0] == "ack"
        assert view(member, "a", "b")[0] == "view"
        numbers = [session for session, _ in greet(member)[1]["former"]]
        assert numbers == [again["session"]], "nothing is said of the former one"
        assert member.values()["kept"] == "1"
    finally:
        member.close()
        process.end(signal.SIGKILL)
