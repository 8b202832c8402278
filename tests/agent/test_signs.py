"""Signs of life: `beat` and `bye`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.agent.membership.sessions import SessionRegistry
from imap_wal.agent.monitoring.health import why_not_ready
from imap_wal.agent.reads import work as works
from imap_wal.agent.reads.work import Work
from imap_wal.agent.requests import Append, Beat
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.context import Context
from imap_wal.errors import Fenced
from imap_wal.layout import Identity
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.merge import MergeProgress
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log
from storage_backends import open_store
from tests.agent.harness import config, plugin, serving
from tests.support import eventually


def test_a_beat_is_answered(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        assert member.client.ask("beat")[0][:2] == ["beat", 2]


def test_beats_show_the_progress_of_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a member can distinguish a long merge from one that hangs."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        for number in range(20):
            member.put(**{f"k{number}": "v"})
    reached, go_on = threading.Semaphore(0), threading.Semaphore(0)
    done = Work.done

    def in_steps(work: Work, merge: MergeProgress | None = None) -> None:
        reached.release()
        assert go_on.acquire(timeout=60)
        done(work, merge)

    monkeypatch.setattr(Work, "done", in_steps)
    with serving(settings), plugin(settings) as member:
        seen = set()
        for _ in range(3):
            assert reached.acquire(timeout=60)
            for _ in range(2):  # it does not grow while the merge does nothing
                seen.add(member.client.ask("beat")[0][2])
            go_on.release()
        go_on.release(10_000)
        eventually(lambda: member.client.ask("beat")[0][2] > 2, "the merge continues")
    assert seen == {0, 1, 2}


def test_a_beat_before_hello_is_refused(tmp_path: Path) -> None:
    """The connection stays usable."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings, greet=False) as member:
        for kind in ("beat", "bye"):
            assert member.client.ask(kind)[0][2] == "not-ready"
        member.hello()
        assert member.put(a="1")[0] == "ack"


def test_a_beat_is_answered_while_a_read_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore that reads all logs, or an archive run, may take long."""
    settings = config(tmp_path)
    reached, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        reached.set()
        assert go_on.wait(60)

    with (
        serving(settings) as agent,
        plugin(settings) as member,
        plugin(settings, uuid="reader") as reader,
    ):
        monkeypatch.setattr(agent._reads._view, "catch_up", slow)
        asked = reader.client.post("keys", "orders", None, 10)
        assert reached.wait(60)
        assert member.client.ask("beat")[0][0] == "beat"
        go_on.set()
        assert reader.client.answer(asked)[0][0] == "keys"


def test_a_merge_lets_a_hello_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both need the interpreter; with a small part of a processor, the hello would take too long.
    The merge ends after the hello."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        for number in range(20):
            member.put(**{f"k{number}": "v"})
    monkeypatch.setattr(works, "YIELD_S", 60.0)
    merging, greeting, waits = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []
    done, hello = Work.done, SessionRegistry.hello

    def part(work: Work, merge: MergeProgress | None = None) -> None:
        merging.set()
        assert greeting.wait(60)
        waits.set()
        done(work, merge)
        order.append("part")

    def greet(registry: SessionRegistry, *about: Any) -> Any:
        greeting.set()
        assert waits.wait(60)
        order.append("hello")
        return hello(registry, *about)

    monkeypatch.setattr(Work, "done", part)
    monkeypatch.setattr(SessionRegistry, "hello", greet)
    with serving(settings), plugin(settings, greet=False) as member:
        assert merging.wait(60)
        member.hello()
        assert len(member.keys()) == 20
    assert order[:2] == ["hello", "part"]


def test_a_beat_does_not_wait_for_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The beat arrives together with an append, and is answered before it is synced."""
    settings = config(tmp_path)
    order: list[str] = []
    with (
        serving(settings) as agent,
        plugin(settings) as member,
        plugin(settings, uuid="other") as beating,
    ):
        sync, send = NodeLog.sync, agent._router.send
        monkeypatch.setattr(NodeLog, "sync", lambda log: (order.append("sync"), sync(log))[1])
        monkeypatch.setattr(
            agent._router,
            "send",
            lambda to, header, *rest: (order.append(header[0]), send(to, header, *rest))[1],
        )
        handle = agent._handler.handle

        def together(message: object, pending: object) -> None:
            """The append, and before its commit a beat of another connection."""
            handle(message, pending)  # type: ignore[arg-type]
            if isinstance(message.request, Append):  # type: ignore[attr-defined]
                number = beating.client.post("beat")
                (beat,) = agent._router.receive(20_000)
                handle(beat, pending)  # type: ignore[arg-type]
                assert beat.request == Beat(number)

        monkeypatch.setattr(agent._handler, "handle", together)
        assert member.put(a="1")[0] == "ack"
    assert order[:3] == ["beat", "sync", "ack"]


def test_after_bye_a_plug_in_must_say_hello_again(tmp_path: Path) -> None:
    """This applies to all of its connections; those of other plug-ins continue."""
    settings = config(tmp_path)
    with (
        serving(settings),
        plugin(settings) as member,
        plugin(settings, greet=False) as reading,
        plugin(settings, uuid="another") as other,
    ):
        reading.hello(purpose="read")
        assert member.put(a="1")[0] == "ack"
        assert member.client.ask("bye")[0][0] == "bye"
        assert reading.client.ask("keys", "orders", None, 10)[0][2] == "not-ready"
        assert member.put(b="1")[:2] == ["error", "not-ready"]
        assert other.put(c="1")[0] == "ack", "another plug-in is not concerned"
        assert member.hello()["last_request"] == 1
        assert member.send(2, {"b": "1"})[0] == "ack"
        assert member.values() == {"a": "1", "b": "1", "c": "1"}


@pytest.mark.parametrize("how", ["forgotten", "taken over"])
def test_an_idle_agent_notices_that_it_lost_its_log(tmp_path: Path, how: str) -> None:
    """It ends, as at its next commit, and is not called ready until then."""
    settings = config(tmp_path, lifetime_timeout_s=0.6)
    # The agent may look while the node is being forgotten.
    said = "forgotten|imap-wal forget-node" if how == "forgotten" else how
    with pytest.raises(Fenced, match=said), serving(settings) as agent:
        with plugin(settings) as member:
            assert member.put(a="1")[0] == "ack"
        store = open_store(settings.url)
        if how == "forgotten":
            forget_node(ClusterLog(Context(store), "default", "c"), settings.node, lose=True)
        else:
            identity = Identity("default", "c", settings.node)
            randomness = SystemRandomness()
            context = LogContext(
                Context(store, clock=SystemClock(), randomness=randomness), identity, settings.log
            )
            open_node_log(context, holder="another", takeover=True, maps=True).close()
        eventually(lambda: agent.snapshot().fenced, "the agent noticed it")
        assert "taken over" in why_not_ready(agent.snapshot())
