"""A takeover, a storage that fails, and a stop: the agent acknowledges only what is in the log."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path

import pytest

from imap_wal import format
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent
from imap_wal.errors import Fenced, WriterLocked
from imap_wal.placement import Placed
from imap_wal.segment.reader import SegmentReader
from storage_backends import NoSpace, open_store
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.agent.harness import config, plugin, serving
from tests.kit.agents import Process, live, logged
from tests.support import eventually, segments


@pytest.mark.parametrize("kind", ["append", "sync"])
def test_a_storage_failure_answers_all_appends_under_way(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each of two appends gets an error, and `last_request` counts only what is in the log."""
    failing = FaultyStore(
        memory, Plan((Fault("error", at=4, kind=kind, path="*/wal/*", error=NoSpace),))
    )
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(failing, place))
    settings = config(tmp_path, url=memory.url)
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        numbers = [
            member.client.post(
                "append", member.session, first, 1, payload=member.payload(first, {key: "2"})
            )
            for first, key in ((2, "b"), (3, "c"))
        ]
        answers = [member.client.answer(number)[0] for number in numbers]
        assert [answer[0] for answer in answers] == ["error", "error"], answers
        eventually(
            lambda: member.client.ask("hello", member.about())[0][0] == "welcome",
            "the agent opens its log again",
        )
        last = member.hello()["last_request"]
        assert last in ((1,) if kind == "append" else (1, 2, 3))
        for first, key in ((2, "b"), (3, "c")):
            assert member.send(first, {key: "2"})[0] == "ack"
    assert [(key, value) for key, value, _ in logged(settings)] == [
        ("a", "1"),
        ("b", "2"),
        ("c", "2"),
    ]


def test_an_agent_acknowledges_nothing_into_a_replaced_folder(tmp_path: Path) -> None:
    """It ends; the next agent finds all that was acknowledged."""
    settings = config(tmp_path)
    process = Process(settings)
    root = Path(settings.url.removeprefix("file://"))
    with plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        shutil.copytree(root, f"{root}-copy")
        root.rename(f"{root}-old")
        Path(f"{root}-copy").rename(root)
        answer = member.put(b="2")
        assert answer[0] == "error"
        assert "its folder was replaced" in str(answer)
    assert process.wait() != 0
    with serving(settings):
        assert live(settings) == {"a": "1"}


def test_a_second_agent_of_a_node_is_refused(tmp_path: Path) -> None:
    """The error names the agent that has the log, and this one continues."""
    first, second = config(tmp_path), config(tmp_path)
    with serving(first), plugin(first) as member:
        with pytest.raises(
            WriterLocked, match=r"imap-wal agent at ipc://.*--?takeover|imap-wal agent at ipc://"
        ):
            Agent(second)
        assert member.put(a="1")[0] == "ack"


def test_a_replaced_agent_acknowledges_nothing_and_ends(tmp_path: Path) -> None:
    """After a takeover, the earlier agent answers `outcome-unknown`, and its process ends with
    `Fenced`."""
    first, second = config(tmp_path), config(tmp_path)
    agent = Agent(first)
    ended: list[BaseException] = []

    def serve() -> None:
        try:
            agent.serve()
        except Fenced as error:
            ended.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with plugin(first) as old:
        assert old.put(a="1")[0] == "ack"
        taking = AgentConfig.from_mapping(
            {"url": second.url, "cluster": "c", "node": "n1", "endpoint": second.endpoint},
            takeover=True,
        )
        with serving(taking), plugin(taking) as new:
            assert new.request == 1
            assert old.put(b="zombie")[:2] == ["error", "outcome-unknown"]
            thread.join(30)
            assert ended
            assert new.put(b="2")[0] == "ack"
            assert new.values() == {"a": "1", "b": "2"}
    assert live(first) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(("kind", "error_code"), [("append", "full"), ("sync", "outcome-unknown")])
def test_after_a_storage_failure_the_agent_opens_a_new_epoch(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, kind: str, error_code: str
) -> None:
    """The next welcome counts what is in the log, so a resend appends nothing twice."""
    faulty = FaultyStore(
        memory, Plan((Fault("error", at=4, kind=kind, path="*/wal/*", error=NoSpace),))
    )
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(faulty, place))
    monkeypatch.setattr("imap_wal.agent.mender.REOPEN_S", 0.05)
    settings = config(tmp_path, url=memory.url)
    with serving(settings) as agent, plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        answer = member.put(b="2")
        assert answer[:2] == ["error", error_code]
        assert "planned fault" in answer[2]
        refused = member.put(c="3")
        assert refused[:2] == ["error", "not-ready"]
        eventually(
            lambda: agent._log.node_log.epoch == 2 and agent._log.writer.committer.failure is None,
            "the log was opened again",
        )
        assert member.put(d="4")[:2] == ["error", "not-ready"], (
            "the connection is to say hello again"
        )
        member.request = 0
        in_log = [order[3] for _, _, order in logged(settings)]
        assert member.hello()["last_request"] == max(in_log)
        assert member.session == 1
        assert member.send(1, {"a": "1", "b": "2"}) == ["ack", 1, 2]
        assert member.stat()["healthy"]
    assert [order[3] for _, _, order in logged(settings)] == [1, 2]


def test_an_agent_retries_while_the_storage_fails(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers requests with errors meanwhile, and recovers when the storage works."""
    faulty = FaultyStore(memory)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(faulty, place))
    monkeypatch.setattr("imap_wal.agent.mender.REOPEN_S", 0.01)
    settings = config(tmp_path, url=memory.url)
    with serving(settings) as agent, plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        broken = Plan((Fault("error", kind="*", path="*", times=6),))
        faulty._seen, faulty.plan = [0], broken
        assert member.put(b="2")[0] == "error"
        assert not member.stat()["healthy"]
        header, _ = member.client.ask("hello", member.about())
        assert header[2] == "not-ready"
        eventually(
            lambda: len(faulty.fired) == 6 and agent._log.writer.committer.failure is None,
            "it came back",
        )
        member.hello()
        assert member.put(c="3")[0] == "ack"
    assert {"a", "c"} <= live(settings).keys()


def test_sigterm_stops_the_log_cleanly(settings: AgentConfig) -> None:
    """What waits is committed, and the last frame records the clean stop."""
    process = Process(settings)
    with plugin(settings) as member:
        for number in range(50):
            member.put(**{f"k{number}": "v"})
        assert process.end(signal.SIGTERM) == 0
    store = open_store(settings.url)
    frames = [
        frame for path in segments(store) for frame in SegmentReader(store, path).whole_frames()
    ]
    assert frames[-1].kind == format.CLEAN_SHUTDOWN
    agent = Agent(settings)
    assert agent._log.node_log.recovery.clean
    agent.stop()
    agent.serve()
    assert len(live(settings)) == 50
