"""What a member sends is in the log once, whoever dies in between; what was acknowledged is never
void."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal import entry as entries
from imap_wal import format
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent
from imap_wal.errors import Fenced, WriterLocked
from imap_wal.manifest.cluster import claim_manifests, cluster_manifests
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import Settings
from storage_backends import NoSpace, open_store
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.agent.harness import config, named, plugin, serve_in_process, serve_until_fault, serving
from tests.support import FakeClock, SeededRandomness, Threads, eventually, segments

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["imap_wal.agent.server", "imap_wal.retention.archive", "tests.agent.harness"]
)


def logged(settings: AgentConfig) -> list[tuple[str, Any, tuple[int, ...]]]:
    """Every entry in the log: key, value, order."""
    store = open_store(settings.url)
    rows = [
        row
        for path in segments(store)
        for frame in SegmentReader(store, path).frames()
        if frame.kind == format.ENTRIES
        for row in entries.rows(frame.payload)
    ]
    return [(row[1].decode(), row[3] and row[3].decode(), row[9]) for row in rows]


def live(settings: AgentConfig, name: str = "orders") -> dict[str, str]:
    """What a restore of the cluster gives."""
    view = MaterializedView(
        ClusterLog(open_store(settings.url), settings.namespace, settings.cluster), Settings()
    )
    view.catch_up()
    found = {
        row[1].decode(): row[3].decode()
        for rows in view.rows(name)
        for row in rows
        if row[3] is not None
    }
    view.close()
    return found


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


class Process:
    """An agent in a process of its own."""

    def __init__(self, settings: AgentConfig, fault: Fault | None = None) -> None:
        ours, theirs = _context.Pipe(duplex=False)
        arguments = (settings, theirs) if fault is None else (settings, theirs, fault)
        self.process = _context.Process(
            target=serve_in_process if fault is None else serve_until_fault, args=arguments
        )
        self.process.start()
        theirs.close()
        assert ours.poll(60), "the agent does not start"
        assert ours.recv_bytes() == b"ready"

    def end(self, number: int) -> int | None:
        """Send a signal; the exit code."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        return self.wait()

    def wait(self) -> int | None:
        self.process.join(60)
        return self.process.exitcode


# ---- hello, append, ack --------------------------------------------------------------------------


def test_a_change_is_acknowledged_when_it_is_in_the_log(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings, greet=False) as member:
        welcome = member.hello()
        assert {**welcome, "agent_version": ""} == {
            "protocol": 1,
            "node": "n1",
            "session": 1,
            "incarnation": 1,
            "last_request": 0,
            "max_value_bytes": 128 * 1024 * 1024,
            "max_message_bytes": 144 * 1024 * 1024,
            "agent_version": "",
            "former": [],
        }
        assert member.put(a="1", b="2") == ["ack", 1, 2]
        assert member.put(a=None) == ["ack", 3, 1]
        assert logged(settings) == [
            ("a", "1", (1, 1, 1, 1)),
            ("b", "2", (1, 1, 1, 2)),
            ("a", None, (1, 1, 1, 3)),
        ]
        assert member.values() == {"b": "2"}
    assert live(settings) == {"b": "2"}


@pytest.mark.parametrize(
    "request_",
    [
        ("append", 1, 1, 1),
        ("metadata", 1, 1),
        ("keys", "m", None, 1),
        ("list", "m", None, 1, [0]),
        ("load", "m", 0),
        ("maps", ["m"]),
        ("schemas",),
    ],
)
def test_nothing_is_answered_before_hello(settings: AgentConfig, request_: tuple[Any, ...]) -> None:
    with serving(settings), plugin(settings, greet=False) as member:
        payload = member.payload(1, {"a": "1"}) if request_[0] in ("append", "metadata") else b""
        header, _ = member.client.ask(*request_, payload=payload)
        assert header[:3] == ["error", 1, "not-ready"]
        assert "n1" in header[3]
    assert logged(settings) == []


def test_a_session_of_another_plug_in_is_refused(settings: AgentConfig) -> None:
    """An append with another plug-in's session is superseded, and the right one still writes."""
    with serving(settings), plugin(settings) as one, plugin(settings, uuid="plugin-2") as two:
        assert (one.session, two.session) == (1, 2)
        two.session = 1
        assert two.put(a="1")[:2] == ["error", "superseded"]
        assert one.put(a="1")[0] == "ack"


def test_a_plug_in_of_another_protocol_is_refused(settings: AgentConfig) -> None:
    """The error names both protocol versions."""
    with serving(settings), plugin(settings, greet=False) as member:
        header, _ = member.client.ask("hello", member.about(protocol=2))
        assert header[2] == "unsupported-version"
        assert "protocol 1, not 2" in header[3]
        assert member.put(a="1")[:2] == ["error", "not-ready"]


def test_a_reading_connection_leaves_the_writing_one_open(settings: AgentConfig) -> None:
    """A hello with purpose "read" does not supersede the same plug-in's connection for writes."""
    with serving(settings), plugin(settings) as writer, plugin(settings, greet=False) as reader:
        assert reader.hello(purpose="read")["session"] == writer.session
        assert writer.put(a="1")[0] == "ack"
        assert reader.values() == {"a": "1"}
        assert reader.put(b="1")[:2] == ["error", "superseded"]


@pytest.mark.parametrize("durability", ["always", "interval", "os", "async"])
def test_every_durability_keeps_what_was_acknowledged_before_a_stop(
    tmp_path: Path, durability: str
) -> None:
    settings = config(tmp_path, durability=durability, sync_interval_ms=20)
    with serving(settings), plugin(settings) as member:
        for number in range(200):
            assert member.put(**{f"k{number}": "v"})[0] == "ack"
    assert len(live(settings)) == 200


def test_many_members_share_commits(settings: AgentConfig) -> None:
    with serving(settings) as agent:

        def write(number: int) -> None:
            with plugin(settings, uuid=f"plugin-{number}") as member:
                for each in range(60):
                    assert member.put(**{f"{number}.{each}": "v"})[0] == "ack"

        Threads(*[lambda number=number: write(number) for number in range(8)]).join()
        commits = agent.statistics()["commit"]
        assert commits["records"] == 480 + 8, "and each member itself"
        assert commits["syncs"] < 480
    assert len(live(settings)) == 480


# ---- sent again ----------------------------------------------------------------------------------


def test_what_is_sent_again_is_acknowledged_and_not_appended(settings: AgentConfig) -> None:
    with serving(settings) as agent, plugin(settings) as member:
        assert member.send(1, {"a": "1", "b": "2"}) == ["ack", 1, 2]
        assert member.send(1, {"a": "1", "b": "2"}) == ["ack", 1, 2]
        with plugin(settings, greet=False) as again:
            assert again.hello()["last_request"] == 2
            assert again.session == member.session
            assert again.send(1, {"a": "1", "b": "2"}) == ["ack", 1, 2]
            assert again.send(2, {"b": "2"}) == ["ack", 2, 1]
        assert agent.statistics()["duplicates"] == 5
    assert [order[3] for _, _, order in logged(settings)] == [1, 2]


def test_a_message_that_is_partly_logged_is_completed(settings: AgentConfig) -> None:
    """A resend whose first requests are in the log appends only the later ones, once."""
    with serving(settings), plugin(settings) as member:
        member.send(1, {"a": "1", "b": "2"})
        assert member.send(1, {"a": "1", "b": "2", "c": "3", "d": "4"}) == ["ack", 1, 4]
        assert member.hello()["last_request"] == 4
    assert [(key, order[3]) for key, _, order in logged(settings)] == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
        ("d", 4),
    ]


def test_an_agent_that_was_killed_recognises_what_is_sent_again(settings: AgentConfig) -> None:
    first = Process(settings)
    with plugin(settings) as member:
        member.send(1, {"a": "1", "b": "2"})
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = Process(settings)
    with plugin(settings) as member:
        assert (member.session, member.incarnation, member.request) == (1, 1, 2)
        assert member.send(1, {"a": "1", "b": "2", "c": "3"}) == ["ack", 1, 3]
        assert member.values() == {"a": "1", "b": "2", "c": "3"}
    assert second.end(signal.SIGTERM) == 0
    assert [order[3] for _, _, order in logged(settings)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "when", "there"),
    [
        ("append", "before", False),
        ("append", "after", True),
        ("sync", "before", True),
        ("sync", "after", True),
        ("exists", "after", True),
    ],
)
def test_a_resend_after_a_kill_leaves_one_record(
    settings: AgentConfig, kind: Any, when: Any, there: bool
) -> None:
    """The agent is killed at each step between the append and the acknowledgement."""
    # in wal/: 1 header, 2 the member's metadata, 3 the first change, 4 the one that is killed
    first = Process(settings, Fault("kill", at=4, kind=kind, path="*/wal/*", when=when))
    with plugin(settings) as member:
        assert member.send(1, {"a": "1"}) == ["ack", 1, 1]
        member.client._timeout_ms = 1
        with pytest.raises(TimeoutError):
            member.send(2, {"b": "2", "c": "3"})
        assert first.wait() == -signal.SIGKILL
    second = Process(settings)
    with plugin(settings) as member:
        assert member.request == (3 if there else 1), "the welcome tells what is in the log"
        assert member.send(2, {"b": "2", "c": "3"}) == ["ack", 2, 2]
    assert second.end(signal.SIGTERM) == 0
    assert [(key, order[3]) for key, _, order in logged(settings)] == [("a", 1), ("b", 2), ("c", 3)]


def test_a_later_connection_supersedes_the_earlier_one(settings: AgentConfig) -> None:
    """Only the newest connection of a plug-in may append."""
    with serving(settings), plugin(settings) as old, plugin(settings) as new:
        assert old.session == new.session
        assert old.put(a="old")[:2] == ["error", "superseded"]
        assert (
            old.client.ask("metadata", old.session, 1, payload=msgpack.packb(["schema", 1, b""]))[
                0
            ][2]
            == "superseded"
        )
        assert new.put(a="new") == ["ack", 1, 1]
        assert old.put(a="old")[:2] == ["error", "superseded"]
    assert [value for _, value, _ in logged(settings)] == ["new"]


def test_a_welcome_counts_an_append_received_with_the_hello(settings: AgentConfig) -> None:
    """The append comes on the plug-in's earlier connection, in the same turn of the loop."""
    agent = Agent(settings)  # not serving: both requests are received in one turn
    try:
        with plugin(settings, greet=False) as old, plugin(settings, greet=False) as new:
            greeting = Threads(old.hello)
            eventually(lambda: agent._turn(10) or old.session, "the first was welcomed")
            greeting.join()
            sent = Threads(lambda: old.send(1, {"a": "1"}))
            assert agent._router._poller.poll(10_000)
            welcomes: list[int] = []
            again = Threads(lambda: welcomes.append(new.hello()["last_request"]))
            messages = eventually(lambda: _both(agent), "both requests are there")
            agent._router.receive = lambda timeout_ms: messages  # type: ignore[method-assign,assignment]
            agent._turn(0)
            del agent._router.receive
            eventually(lambda: agent._turn(10) or welcomes, "the second was welcomed")
            sent.join()
            again.join()
            assert welcomes == [1]
    finally:
        agent.stop()
        agent.serve()


_held: list[Any] = []


def _both(agent: Agent) -> list[Any]:
    """What was received so far, once it is two requests."""
    _held.extend(agent._router.receive(10))
    return _held[:] if len(_held) >= 2 else []


# ---- incarnations --------------------------------------------------------------------------------


def test_appends_after_a_refused_one_wait_for_a_hello(settings: AgentConfig) -> None:
    """Otherwise `last_request` would include the refused one: the log has a prefix of each
    session."""
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        refused = member.client.ask("append", member.session, 2, 1, payload=b"\xc1")[0]
        assert refused[2] == "bad-request"
        assert member.send(3, {"b": "3"})[:2] == ["error", "not-ready"]
        assert (
            member.client.ask(
                "metadata", member.session, 1, payload=msgpack.packb(["schema", 1, b""])
            )[0][2]
            == "not-ready"
        )
        assert member.hello()["last_request"] == 1
        assert member.send(3, {"b": "3"})[0] == "ack"
        assert member.hello()["last_request"] == 3
    assert [(key, value) for key, value, _ in logged(settings)] == [("a", "1"), ("b", "3")]


def test_answers_come_in_the_order_of_the_requests(settings: AgentConfig) -> None:
    """A refusal that needs no commit does not overtake the acknowledgements before it."""
    with serving(settings), plugin(settings) as member:
        ask = member.client
        for _ in range(20):
            first = member.hello()["last_request"] + 1
            large = {
                f"k{number}": "v" * 2000 for number in range(400)
            }  # the two behind it are there when its turn is over
            numbers = [
                ask.post(
                    "append",
                    member.session,
                    first,
                    len(large),
                    payload=member.payload(first, large),
                ),
                ask.post(
                    "append",
                    member.session,
                    first + 400,
                    1,
                    payload=member.payload(first + 400, {"a": "1"}),
                ),
                ask.post("append", member.session, first + 401, 1, payload=b"\xc1"),
            ]
            assert [ask.answer(number)[0][0] for number in numbers] == [
                "ack",
                "ack",
                "error",
            ]  # it passes over what came too early


@pytest.mark.parametrize("kind", ["append", "sync"])
def test_a_storage_failure_answers_all_appends_under_way(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each of two appends gets an error, and `last_request` counts only what is in the log."""
    failing = FaultyStore(
        memory, Plan((Fault("error", at=4, kind=kind, path="*/wal/*", error=NoSpace),))
    )
    monkeypatch.setattr("imap_wal.agent.server.open_store", lambda url, **_: failing)
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


def test_a_replaced_cluster_is_refused(tmp_path: Path) -> None:
    """The change under way is not acknowledged, and later ones are `void-incarnation`."""
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    with serving(one), serving(two), plugin(one) as old:
        assert old.put(a="1", b="1")[0] == "ack"
        with plugin(two, cluster_id="cluster-2", uuid="plugin-2") as new:
            assert new.incarnation == 2
            assert new.values() == {"a": "1", "b": "1"}
            answer = old.put(a="2")
            assert answer[:2] in (["error", "outcome-unknown"], ["error", "void-incarnation"])
            assert old.put(a="3")[:2] == ["error", "void-incarnation"]
            assert new.put(b="2")[0] == "ack"
            assert new.values() == {"a": "1", "b": "2"}
    assert live(one) == {"a": "1", "b": "2"}


def test_a_replaced_cluster_stays_out_until_it_is_restarted(tmp_path: Path) -> None:
    """Each hello of its members is refused; a new cluster on the same node is welcome."""
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    with serving(one), serving(two), plugin(one) as old:
        old.put(a="1")
        with plugin(two, cluster_id="cluster-2", uuid="plugin-2") as new:
            assert old.put(a="2")[1] in ("outcome-unknown", "void-incarnation")
            for _ in range(3):
                header, _ = old.client.ask("hello", old.about())
                assert (header[0], header[2]) == ("error", "void-incarnation")
                assert "followed by 2" in header[3]
                assert old.put(a="3")[0] == "error"
            assert new.put(b="1")[0] == "ack"
        with plugin(one, cluster_id="cluster-3", uuid="plugin-1-again") as again:
            assert again.put(c="1")[0] == "ack"
    assert live(one) == {"a": "1", "b": "1", "c": "1"}


def test_a_member_that_merged_into_the_older_cluster_continues(tmp_path: Path) -> None:
    """The plug-in of the newest incarnation proves that the cluster with the older id continues."""
    one = config(tmp_path, "n1")
    with serving(one), plugin(one) as first:
        first.put(a="1")
        with plugin(one, cluster_id="cluster-2", uuid="plugin-2") as second:
            second.put(b="1")
        with plugin(one, uuid="plugin-2") as merged:
            assert merged.put(c="1")[0] == "ack"
    assert live(one) == {"a": "1", "b": "1", "c": "1"}


def test_no_acknowledged_change_is_void(tmp_path: Path) -> None:
    """Clusters claim the log from each other while members of the replaced one write."""
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    acked: set[str] = set()

    def write(settings: AgentConfig, fight: int, member: int) -> None:
        """Write for a cluster until it is refused."""
        with plugin(
            settings, cluster_id=f"cluster-{fight}", uuid=f"plugin-{fight}-{member}"
        ) as old:
            for number in range(1, 100_000):
                key = f"{fight}.{member}.{number}"
                answer = old.put(**{key: "v"})
                if answer[0] != "ack":
                    assert answer[1] in ("outcome-unknown", "void-incarnation"), answer
                    return
                acked.add(key)

    def fight(number: int) -> None:
        writers = Threads(lambda: write(one, number, 1), lambda: write(two, number, 2))
        eventually(
            lambda: {f"{number}.1.5", f"{number}.2.5"} <= acked,
            "both members of the old cluster write",
        )
        with plugin(
            one if number % 2 else two, cluster_id=f"rival-{number}", uuid=f"rival-{number}"
        ) as rival:
            assert rival.put(**{f"rival.{number}": "v"})[0] == "ack"
            acked.add(f"rival.{number}")
            writers.join()

    with serving(one), serving(two):
        for number in range(8):
            fight(number)
    found = live(one)
    assert acked <= found.keys(), f"acknowledged and void: {sorted(acked - found.keys())}"


def test_an_append_received_with_another_clusters_hello_is_not_void(settings: AgentConfig) -> None:
    """The append of the old cluster and the hello of the new one come in one turn of the loop: an
    append that is acknowledged counts."""
    agent = Agent(settings)
    answers: list[Any] = []
    try:
        with (
            plugin(settings, greet=False) as old,
            plugin(settings, greet=False, cluster_id="cluster-2", uuid="plugin-2") as new,
        ):
            greeting = Threads(old.hello)
            eventually(lambda: agent._turn(10) or old.session, "the first was welcomed")
            greeting.join()
            _held.clear()
            sent = Threads(lambda: answers.append(old.send(1, {"a": "1"})))
            assert agent._router._poller.poll(10_000)
            eventually(
                lambda: _held.extend(agent._router.receive(10)) or _held, "the append is there"
            )
            again = Threads(new.hello)
            messages = eventually(lambda: _both(agent), "both requests are there")
            agent._router.receive = lambda timeout_ms: messages  # type: ignore[method-assign,assignment]
            agent._turn(0)
            del agent._router.receive
            eventually(lambda: agent._turn(10) or (answers and new.session), "both were answered")
            sent.join()
            again.join()
    finally:
        agent.stop()
        agent.serve()
    assert ("a" in live(settings)) or answers[0][0] == "error"


# ---- one writer, faults --------------------------------------------------------------------------


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
    monkeypatch.setattr("imap_wal.agent.server.open_store", lambda url, **_: faulty)
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
            lambda: agent._node_log.epoch == 2 and agent._committer.failure is None,
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
    monkeypatch.setattr("imap_wal.agent.server.open_store", lambda url, **_: faulty)
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
            lambda: len(faulty.fired) == 6 and agent._committer.failure is None, "it came back"
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
    frames = [frame for path in segments(store) for frame in SegmentReader(store, path).frames()]
    assert frames[-1].kind == format.CLEAN_SHUTDOWN
    agent = Agent(settings)
    assert agent._node_log.recovery.clean
    agent.stop()
    agent.serve()
    assert len(live(settings)) == 50


def test_each_session_is_recorded_in_the_log(settings: AgentConfig) -> None:
    """With its cluster, its member, its node, its number and its incarnation."""
    with serving(settings), plugin(settings), plugin(settings, uuid="plugin-2"):
        pass
    store = open_store(settings.url)
    metadata = [
        tuple(item)
        for path in segments(store)
        for frame in SegmentReader(store, path).frames()
        if frame.kind == format.METADATA
        for item in entries.values(frame.payload)
    ]
    assert named(metadata) == [
        ("member", "cluster-1", "member-1", "n1", 1, 1),
        ("member", "cluster-1", "member-1", "n1", 2, 1),
    ]


def test_the_cluster_manifest_has_each_lifetime_with_its_cuts(tmp_path: Path) -> None:
    """Each lifetime has its cluster id, its incarnation, and the positions where the logs ended."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        member.put(a="1")
        with plugin(settings, cluster_id="cluster-2", uuid="plugin-2"):
            pass
    manifest = cluster_manifests(
        open_store(settings.url), "default/c", FakeClock(), SeededRandomness(1)
    ).read()[1]
    claims = (
        claim_manifests(open_store(settings.url), "default/c", {}, FakeClock(), SeededRandomness(1))
        .read()[1]
        .claims
    )
    assert named(dict(claims)) == {"cluster-1": 1, "cluster-2": 2}
    first, second = manifest.lifetimes
    found = (first.cluster_id, first.incarnation, second.cluster_id, second.incarnation)
    assert named(found) == ("cluster-1", 1, "cluster-2", 2)
    assert second.cuts["n1"] > first.cuts.get("n1", format.START)
