"""Clocks that differ: restores leave out nothing by expiry, and it is said which clocks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgpack
import pytest

from imap_wal import layout
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.clocks import OFTEN_S, PAUSE_S, Clocks, content, parse
from imap_wal.clock import SystemClock
from rewrite_cli.doctor.agent import agent_checks
from storage_backends import NotFound
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.agent.harness import Plugin, config, entry, plugin, serving
from tests.support import FakeClock, eventually

HOUR_MS = 3_600_000
HALF_MS = HOUR_MS // 2
BEGIN_MS = 1_763_700_000_000


class Disk:
    """A folder with the signs of agents; its own clock is `now_ms`."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder, self.now_ms = LocalStore(str(folder)), folder, BEGIN_MS

    def sign(self, node: str, ahead_ms: int, number: int = 1, *, alive: bool = False) -> None:
        path_of = layout.alive_path if alive else layout.present_path
        path = path_of("default/c", node, 1, number)
        self.store.create(path, content("c-1", self.now_ms + ahead_ms))
        os.utime(self.folder / path, ns=(self.now_ms * 1_000_000,) * 2)


def clocks(disk: Disk, clock: FakeClock, node: str = "n1") -> Clocks:
    return Clocks(disk.store, "default/c", node, 300_000, clock)


@pytest.mark.parametrize("alive", [False, True])
@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
def test_clocks_that_differ_expire_nothing_and_are_named(
    tmp_path: Path, ahead_ms: int, alive: bool
) -> None:
    """Both agents find it: neither knows which of the two clocks is right."""
    disk = Disk(tmp_path)
    disk.sign("n1", 0)
    disk.sign("n2", ahead_ms, alive=alive)
    for node, ahead in (("n1", -ahead_ms), ("n2", ahead_ms)):
        clock = FakeClock(disk.now_ms + (ahead_ms if node == "n2" else 0))
        each = clocks(disk, clock, node)
        each.look()
        assert each.expired_until_ms() == 0
        assert each.ahead_ms[f"node {'n1' if node == 'n2' else 'n2'!r}"] == ahead
        for named in (f"node {node!r}", "they differ by 3,600 s", "clock_skew_max_s (300 s)"):
            assert named in each.doubt


def test_clocks_within_the_limit_expire_entries(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.sign("n1", 0)
    disk.sign("n2", 300_000)
    found = clocks(disk, FakeClock(disk.now_ms))
    found.look()
    assert (found.doubt, found.skew_ms) == ("", -300_000)
    assert found.expired_until_ms() == disk.now_ms


def test_a_lone_agent_compares_with_the_storage(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.sign("n1", HOUR_MS)
    found = clocks(disk, FakeClock(disk.now_ms + HOUR_MS))
    found.look()
    assert f"the clock of the storage file://{tmp_path}" in found.doubt
    assert found.expired_until_ms() == 0


def test_the_sign_of_a_killed_agent_says_nothing_for_long(tmp_path: Path) -> None:
    disk, clock = Disk(tmp_path), FakeClock(BEGIN_MS)
    disk.sign("n2", HOUR_MS)
    disk.sign("n1", 0)
    found = clocks(disk, clock)
    found.look()
    assert found.doubt
    clock.advance(4 * PAUSE_S)
    disk.now_ms += int(4 * PAUSE_S * 1000)
    disk.sign("n1", 0, 2)
    found.look()
    assert not found.doubt


def test_a_corrected_clock_is_noticed(tmp_path: Path) -> None:
    """The agent was started again with it, or reads its sign again after a pause."""
    disk, clock = Disk(tmp_path), FakeClock(BEGIN_MS)
    disk.sign("n1", 0)
    disk.sign("n2", HOUR_MS)
    found = clocks(disk, clock)
    found.look()
    assert found.doubt
    clock.advance(OFTEN_S + PAUSE_S)
    disk.now_ms += int((OFTEN_S + PAUSE_S) * 1000)
    disk.sign("n1", 0, 2)
    disk.sign("n2", 0, 2)
    found.look()
    assert not found.doubt


def test_without_its_own_sign_others_are_compared(tmp_path: Path) -> None:
    """The agent that was ahead has ended, and another one is ahead now."""
    disk, clock = Disk(tmp_path), FakeClock(BEGIN_MS)
    disk.sign("n1", 0)
    disk.sign("n2", HOUR_MS)
    found = clocks(disk, clock)
    found.look()
    assert "the clock of node 'n2'" in found.doubt
    disk.store.delete(layout.present_path("default/c", "n1", 1, 1))
    clock.advance(4 * PAUSE_S)
    disk.now_ms += int(4 * PAUSE_S * 1000)
    disk.sign("n3", -HOUR_MS)
    found.look()
    assert found.ahead_ms == {f"the storage file://{tmp_path}": 0, "node 'n3'": HOUR_MS}


def test_a_sign_renewed_during_a_look_stays_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, clock = Disk(tmp_path), FakeClock(BEGIN_MS)
    disk.sign("n1", 0)
    disk.sign("n2", HOUR_MS)
    found = clocks(disk, clock)
    found.look()
    clock.advance(OFTEN_S + PAUSE_S)

    def gone(path: str) -> bytes:
        raise NotFound("renewed", path)

    monkeypatch.setattr(disk.store, "read", gone)
    found.look()
    assert "the clock of node 'n2'" in found.doubt


def test_a_storage_without_times_compares_nothing() -> None:
    store = MemoryStore("no-times")
    clock = FakeClock()
    for node, ahead_ms in (("n1", 0), ("n2", HOUR_MS)):
        path = layout.present_path("default/c", node, 1, 1)
        store.create(path, content("", clock.now_ms() + ahead_ms))
    found = Clocks(store, "default/c", "n1", 300_000, clock)
    found.look()
    assert (found.ahead_ms, found.expired_until_ms()) == ({}, clock.now_ms())


@pytest.mark.parametrize("data", [b"", b"c-1", b"c-1\nnow", "c-1\n²".encode(), b"\xff\n"])
def test_a_sign_without_a_time_is_not_compared(data: bytes) -> None:
    assert parse(data)[1] == 0
    assert parse(content("c-1", 17)) == ("c-1", 17)


def shifted(folder: Path, node: str, offset_ms: int) -> AgentConfig:
    settings = config(folder, node, lifetime_timeout_s=1)
    object.__setattr__(settings, "clock_offset_ms", offset_ms)
    return settings


def load(member: Plugin, expires_at_ms: int) -> None:
    changes = [
        msgpack.packb(entry(f"k{number}", "v", member.order(number), expires_at_ms=expires_at_ms))
        for number in range(1, 401)
    ]
    header, _ = member.client.ask("append", member.session, 1, 400, payload=b"".join(changes))
    assert header[0] == "ack"


def test_a_fast_agent_restores_entries_that_have_time_left(tmp_path: Path) -> None:
    """`doctor` names both clocks."""
    expires_at_ms = SystemClock().now_ms() + HALF_MS
    with serving(config(tmp_path, "n1", lifetime_timeout_s=1)) as right:
        with plugin(right.config) as member:
            load(member, expires_at_ms)
        with serving(shifted(tmp_path, "n2", HOUR_MS)) as fast:
            eventually(lambda: fast.snapshot().clock_doubt, "the fast agent compares its clock")
            with plugin(fast.config, uuid="plugin-2") as member:
                assert len(member.keys()) == 400
                assert member.load("k1", "k400") == {
                    "k1": ("v", expires_at_ms),
                    "k400": ("v", expires_at_ms),
                }
            (check,) = [
                each for each in agent_checks(fast.config.endpoint) if each.name == "agent's clock"
            ]
            assert check.status == "problem"
            assert "the clock of node 'n2' shows" in check.what
    assert time.time() * 1000 < expires_at_ms
