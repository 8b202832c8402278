"""Maintenance on a disk that is full: the reserve is used, and nothing acknowledged is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import imap_wal
from imap_wal.errors import ImapWalError, NotAppended, OutcomeUnknown
from storage_backends.local import LocalStore
from tests.agent.harness import config, plugin, serving
from tests.cli.conftest import Run
from tests.kit.disks import needed_disk
from tests.kit.effort import every, thorough
from tests.support import eventually

RESERVE = 4 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MiB."""
    with needed_disk(tmp_path / "disk", 40) as made:
        yield made


def opened(url: str) -> imap_wal.Store:
    return imap_wal.open(url, node="n", segment_bytes=1 << 20)


def fill(disk: Path) -> None:
    fd = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        os.close(fd)


def write_until_full(url: str) -> dict[int, str]:
    """What was acknowledged: twenty keys, overwritten until the disk is full."""
    acked: dict[int, str] = {}
    store = opened(url)
    try:
        for number in range(100_000):
            value = f"{number}" + "x" * 20_000
            store.map("m")[number % 20] = value
            acked[number % 20] = value
    except (NotAppended, OutcomeUnknown):
        pass
    try:
        store.close()
    except ImapWalError:
        pass  # its last frame may not fit
    return acked


@every(2)
@pytest.mark.parametrize("archived", [False, True])
def test_a_full_disk_is_emptied_by_rewrite_and_prune(run: Run, disk: Path, archived: bool) -> None:
    root = LocalStore(str(disk / "log"))
    url = f"file://{disk}/log"
    opened(url).close()
    root.reserve.take(RESERVE)
    acked = write_until_full(url)
    fill(disk)
    with pytest.raises(ImapWalError, match="No space left"):
        opened(url)
    for words in ([("archive", url)] if archived else []) + [
        ("rewrite", url),
        ("prune", url, "--yes"),
    ]:
        ended = run(*words)
        assert ended.code == 0, ended.err
        assert ("reserve of 4.0 MiB was given up" in ended.err) == (
            words[0] in ("archive" if archived else "rewrite")
        ), ended.err
    with opened(url) as again:
        assert dict(again.map("m").items()) == acked
        again.map("m")["more"] = 1
    found = root.reserve.state()
    assert found is not None
    assert found.held == RESERVE, "the next segment has taken it again"


def test_a_running_agent_leaves_the_reserve_to_the_commands(
    run: Run, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries to open its log again all the time, and continues when there is room."""
    monkeypatch.setattr("imap_wal.agent.mender.REOPEN_S", 0.001)
    monkeypatch.setattr("imap_wal.agent.mender.REOPEN_S_MAX", 0.001)
    url = f"file://{disk}/log"
    settings = replace(
        config(tmp_path, url=url, preallocate=True, segment_bytes=1 << 20), reserve_bytes=RESERVE
    )
    acked: dict[str, str] = {}
    with serving(settings), plugin(settings) as member:
        for number in range(100_000):
            key, value = f"k{number % 20}", f"{number}" + "x" * 20_000
            if member.put(**{key: value})[0] != "ack":
                break
            acked[key] = value
        fill(disk)
        for words in (("rewrite", url), ("prune", url, "--yes")):
            ended = run(*words)
            assert ended.code == 0, ended.err
        eventually(lambda: not member.stat()["failure"], "the agent has its log again")
        assert LocalStore(str(disk / "log")).reserve.floor() == 0, "it is held again"
        member.hello()
        assert member.put(more="1")[0] == "ack"
        assert len(acked) == 20
        assert {key: value for key, (value, _) in member.load(*acked).items()} == acked


@thorough
def test_a_full_disk_without_a_reserve_stops_a_rewrite(run: Run, disk: Path) -> None:
    url = f"file://{disk}/log"
    (disk / "spare").write_bytes(bytes(RESERVE))
    acked = write_until_full(url)
    fill(disk)
    ended = run("rewrite", url)
    assert ended.code == 1
    assert "the storage is full" in ended.err
    (disk / "spare").unlink()
    with opened(url) as again:
        assert dict(again.map("m").items()) == acked
