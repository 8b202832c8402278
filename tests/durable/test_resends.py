"""A change that a member sends again has one effect, also after a newer change of the same key:
after put A, put B, and put A sent again, the value is B."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from imap_wal.agent.config import AgentConfig
from imap_wal.context import open_context
from imap_wal.entry import KEY, VALUE
from imap_wal.log import LogReader
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from tests.agent.harness import Plugin, config, plugin, serve_in_process
from tests.kit.effort import every
from tests.support import eventually

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["imap_wal.agent.server", "imap_wal.retention.archive", "tests.agent.harness"]
)


@contextmanager
def agent(settings: AgentConfig, end: int) -> Iterator[None]:
    """An agent in a process of its own, ended by a signal."""
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(target=serve_in_process, args=(settings, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(60), "the agent does not start"
        yield
    finally:
        assert process.pid is not None
        os.kill(process.pid, end)
        process.join(60)
        ours.close()


def logged(settings: AgentConfig) -> list[tuple[str, str | None, int]]:
    """Key, value and request of every entry that can still be read in order."""
    records = LogReader(settings.url, cluster="c", node="n1").read()
    return [
        (entry.key.decode(), None if entry.value is None else entry.value.decode(), entry.order[3])
        for _, entry in records
    ]


def restored(settings: AgentConfig) -> dict[str, str]:
    view = MaterializedView(ClusterLog(open_context(settings.url), "default", "c"), Settings())
    view.catch_up()
    found = {
        row[KEY].decode(): row[VALUE].decode()
        for rows in view.rows("orders")
        for row in rows
        if row[VALUE] is not None
    }
    view.close()
    return found


def resend_everything(member: Plugin, sent: list[tuple[int, dict[str, str | None]]]) -> None:
    """Newest first and oldest first; each is acknowledged as it was the first time."""
    for first, changes in [*reversed(sent), *sent]:
        assert member.send(first, changes) == ["ack", first, len(changes)]


@every(6)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("meanwhile", ["nothing", "archived", "archived, rewritten and pruned"])
def test_resent_put_does_not_undo_a_later_put(tmp_path: Path, end: int, meanwhile: str) -> None:
    """After put A, put B, and put A sent again, the value is B, also after a restart of the
    agent."""
    settings = config(tmp_path, archive_interval_s=0 if meanwhile == "nothing" else 0.05)
    sent: list[tuple[int, dict[str, str | None]]] = [
        (1, {"k": "A"}),
        (2, {"k": "B"}),
        (3, {"gone": "A"}),
        (4, {"gone": None}),
        (5, {"k2": "A", "k3": "A"}),
        (7, {"k2": "B"}),
    ]
    expected = {"k": "B", "k2": "B", "k3": "A"}
    with agent(settings, end), plugin(settings) as member:
        for first, changes in sent:
            assert member.send(first, changes) == ["ack", first, len(changes)]
        resend_everything(member, sent)
        assert member.values() == expected
    once = [
        (key, value, first + index)
        for first, changes in sent
        for index, (key, value) in enumerate(changes.items())
    ]
    for _ in range(2):
        if meanwhile != "nothing":
            with agent(settings, signal.SIGTERM):
                eventually(lambda: not list((tmp_path / "log").rglob("*.wal")), "all is archived")
        if meanwhile.endswith("pruned"):
            log = ClusterLog(open_context(settings.url), "default", "c")
            rewrite(log, LocalEngine(Settings()))
            assert prune(log).archives or not logged(settings)
            once = []
        with agent(settings, end), plugin(settings, greet=False) as member:
            assert member.hello()["last_request"] == 7
            assert member.session == 1
            resend_everything(member, sent)
            assert member.values() == expected
            assert logged(settings) == once, "nothing was appended a second time"
        assert restored(settings) == expected


def test_resent_changes_have_one_effect_over_kills(tmp_path: Path, seed: int) -> None:
    """Messages are sent again in any order, over kills: every change has one effect. A member that
    lost answers sends again from any point on, on a new connection, to an agent that may have been
    killed."""
    chance = Random(seed)
    settings = config(tmp_path, segment_bytes=2000)
    sent: list[tuple[int, dict[str, str | None]]] = []
    expected: dict[str, str | None] = {}
    request = 1
    for _ in range(4):
        with agent(settings, signal.SIGKILL):
            for _ in range(6):
                with plugin(settings) as member:
                    assert (member.session, member.request) == (1, request - 1)
                    for _ in range(chance.randrange(1, 6)):
                        keys = chance.sample("abcd", chance.randrange(1, 4))
                        changes: dict[str, str | None] = {
                            key: chance.choice((None, "A", "B")) for key in keys
                        }
                        assert member.send(request, changes)[0] == "ack"
                        sent.append((request, changes))
                        expected.update(changes)
                        request += len(changes)
                        for first, again in chance.sample(sent, min(len(sent), 3)):
                            assert member.send(first, again) == ["ack", first, len(again)]
                    assert member.values() == {
                        key: value for key, value in expected.items() if value is not None
                    }
    assert [number for *_, number in logged(settings)] == list(range(1, request))
    assert restored(settings) == {
        key: value for key, value in expected.items() if value is not None
    }
