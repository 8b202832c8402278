"""Attack: use up the time or the memory of an agent, so that other peers wait or lose their
listings."""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal.agent import server
from imap_wal.agent.bounds import LOAD_KEYS_MAX, WAITING_BYTES_MAX
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.reads import listings, reads
from imap_wal.agent.server import Agent
from tests.agent.harness import Plugin, config, plugin, serving
from tests.hostile.peers import RawPeer
from tests.support import eventually

MB = 1024 * 1024


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


# ---- names of connections ------------------------------------------------------------------------


def _take_the_next_names(settings: AgentConfig) -> None:
    with serving(settings) as agent, plugin(settings) as member, ExitStack() as opened:
        (name,) = agent._log.sessions._connections
        first = int.from_bytes(name[1:])
        for number in range(1, 60):
            peer = RawPeer(settings.endpoint, b"\0" + ((first + number) % 2**32).to_bytes(4, "big"))
            opened.callback(peer.close)
        for number in range(60):
            with plugin(settings, uuid=f"other-{number}", member=f"other-{number}") as other:
                other.stat()
        assert member.put(a="1")[0] == "ack"


def test_a_peer_cannot_take_later_routing_ids(settings: AgentConfig) -> None:
    """libzmq counts routing ids up, and aborts the process at one that a peer has taken."""
    agent = multiprocessing.get_context("spawn").Process(
        target=_take_the_next_names, args=(settings,)
    )
    agent.start()
    agent.join(60)
    assert agent.exitcode == 0


# ---- requests that wait --------------------------------------------------------------------------


class SlowHello:
    """Slow hellos of an agent: each waits for `release`, at most `wait_s`. `served`: their
    number."""

    def __init__(self, agent: Agent, monkeypatch: pytest.MonkeyPatch, wait_s: float) -> None:
        self.served = 0
        self.entered, self.release = threading.Event(), threading.Event()
        hello = agent._log.sessions.hello

        def slow(*arguments: Any) -> Any:
            self.entered.set()
            self.release.wait(wait_s)
            self.served += 1
            return hello(*arguments)

        monkeypatch.setattr(agent._log.sessions, "hello", slow)


def test_changes_do_not_wait_for_all_hellos(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(settings) as agent, plugin(settings) as member, ExitStack() as opened:
        others = [
            opened.enter_context(plugin(settings, greet=False, uuid=f"other-{number}"))
            for number in range(40)
        ]
        slow = SlowHello(agent, monkeypatch, 0.05)
        for other in others:
            other.client.post("hello", other.about(purpose="read"))
        assert slow.entered.wait(20)
        assert member.put(a="1")[0] == "ack"
        assert slow.served < 20
        slow.release.set()
        for other in others:
            assert other.client.answer(1)[0][0] == "welcome"


@pytest.mark.parametrize(
    "kind", ["hello", "view", "keys", "list", "maps", "schemas", "stat", "beat", "bye"]
)
def test_a_payload_where_none_belongs_is_refused_and_not_kept(
    settings: AgentConfig, kind: str
) -> None:
    with serving(settings), plugin(settings) as member:
        fields: dict[str, tuple[Any, ...]] = {
            "hello": (member.about(),),
            "keys": ("m", None, 1),
            "list": ("m", None, 1, [0]),
            "maps": (["m"],),
            "view": (
                {
                    "cluster_id": "cluster-1",
                    "member_uuid": "member-1",
                    "members": ["member-1"],
                    "lost": [],
                },
            ),
        }
        header, _ = member.client.ask(kind, *fields.get(kind, ()), payload=b"x" * MB)
        assert (
            header[2] == "bad-request"
            and f"{kind} has no payload; this one has {MB} bytes" in header[3]
        )
        member.hello()
        assert member.put(a="1")[0] == "ack"


def test_waiting_requests_take_bounded_memory(tmp_path: Path) -> None:
    """Small requests are still accepted."""
    settings = config(tmp_path, max_value_bytes=WAITING_BYTES_MAX)
    large = msgpack.packb(b"k" * (WAITING_BYTES_MAX * 2 // 3))
    with serving(settings) as agent, plugin(settings) as member, ExitStack() as opened:
        member.put(a="1")
        member.values()
        greedy = [
            opened.enter_context(plugin(settings, uuid=f"greedy-{number}")) for number in range(3)
        ]
        with agent._reads._view._lock:  # no read ends
            member.client.post("keys", "orders", None, 10)
            eventually(lambda: agent._reads._taken is not None, "the first one is taken up")
            posted = greedy[0].client.post("load", "orders", 1, payload=large)
            # Otherwise the request of the next connection may arrive before it, and wait instead.
            eventually(lambda: agent._room.bytes > WAITING_BYTES_MAX // 2, "it waits")
            for peer in greedy[1:]:
                header, _ = peer.client.ask("load", "orders", 1, payload=large)
                assert header[2] == "not-ready" and "use all the memory" in header[3]
            member.client.post("load", "orders", 1, payload=msgpack.packb(b"a"))
            assert agent._room.bytes < WAITING_BYTES_MAX
        assert greedy[0].client.answer(posted)[0][0] == "entries"
        eventually(lambda: agent._room.bytes == 0, "nothing waits")
        assert member.values() == {"a": "1"}


def test_a_request_that_waits_is_dropped_with_its_connection(settings: AgentConfig) -> None:
    with serving(settings) as agent, plugin(settings) as member:
        member.put(a="1")
        member.values()
        with agent._reads._view._lock:
            with plugin(settings, uuid="other") as other:
                for _ in range(2):
                    other.client.post("load", "orders", 1, payload=msgpack.packb(b"a" * MB))
                    eventually(
                        lambda: agent._reads._taken is not None, "one is taken up, one waits"
                    )
                eventually(lambda: agent._room.bytes > MB, "the other one waits")
            eventually(lambda: agent._router.statistics.open == 1, "the connection is gone")
            member.stat()
        eventually(lambda: agent._room.bytes == 0, "nothing waits")
        assert member.values() == {"a": "1"}


def test_a_stop_answers_all_that_waits(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_S", 0.0)
    with ExitStack() as opened:
        with serving(settings) as agent, plugin(settings) as member:
            member.put(a="1")
            member.values()
            take = agent._lane.take
            monkeypatch.setattr(
                agent._lane,
                "take",
                lambda *, at_once=False: take(at_once=True) if at_once else None,
            )
            others = [
                opened.enter_context(plugin(settings, greet=False, uuid=f"other-{number}"))
                for number in range(10)
            ]
            for other in others:
                other.client.post("hello", other.about())
                other.client.post("stat")
            eventually(
                lambda: sum(len(each.messages) for each in agent._lane._waiting.values()) == 20,
                "all of them wait",
            )
        answers = [other.client.answer(number)[0] for other in others for number in (1, 2)]
        assert all(
            answer[2] == "not-ready" and "the agent is stopping" in answer[3] for answer in answers
        )


# ---- reads ---------------------------------------------------------------------------------------


def begun(reader: Plugin) -> Any:
    """The cursor of a listing that has begun."""
    header, _ = reader.client.ask("keys", "orders", None, 2)
    assert header[0] == "keys", header
    return header[2]


def test_a_peer_that_begins_many_listings_ends_only_its_own(settings: AgentConfig) -> None:
    with (
        serving(settings) as agent,
        plugin(settings) as member,
        plugin(settings, uuid="reader") as reader,
    ):
        member.put(**{f"k{number}": "v" for number in range(10)})
        cursor = begun(reader)
        for _ in range(20):
            with plugin(settings, uuid="greedy") as greedy:
                own = [begun(greedy) for _ in range(10)]
                assert greedy.client.ask("keys", "orders", own[0], 2)[0][2] == "listing-gone"
                assert greedy.client.ask("keys", "orders", own[-1], 2)[0][0] == "keys"
        assert reader.client.ask("keys", "orders", cursor, 2)[0][0] == "keys"
        most = listings.LISTINGS_MAX + listings.ABANDONED_MAX
        eventually(
            lambda: len(agent._reads._listings._listings) <= most,
            "those of closed connections are forgotten",
        )


def test_listings_that_take_much_memory_end_before_those_of_others(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listings, "LISTINGS_BYTES", 5 * listings.KEY_BYTES * 10)
    with (
        serving(settings),
        plugin(settings) as member,
        plugin(settings, uuid="reader") as reader,
        plugin(settings, uuid="greedy") as greedy,
    ):
        member.put(**{f"k{number}": "v" for number in range(10)})
        cursor = begun(reader)
        for _ in range(10):
            begun(greedy)
            greedy.client.ask("keys", "orders", None, 10)
        assert reader.client.ask("keys", "orders", cursor, 2)[0][0] == "keys"


def test_a_load_of_too_many_keys_is_refused(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as member:
        member.put(a="1")
        for count, size in ((LOAD_KEYS_MAX + 1, 1), (17, MB)):
            header, _ = member.client.ask(
                "load", "orders", count, payload=msgpack.packb(b"k" * size) * count
            )
            assert header[2] == "bad-request"
            assert str(LOAD_KEYS_MAX if size == 1 else 16 * MB) in header[3]
        header, _ = member.client.ask("load", "orders", 1, payload=msgpack.packb(b"k" * 17 * MB))
        assert [header[0], *header[2:]] == ["entries", 0, 1], "a single key may be larger"
        assert member.values() == {"a": "1"}


def test_a_slow_load_is_answered_in_parts(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "PART_S", 0.0)
    names = [f"k{number:03}" for number in range(200)]
    with serving(settings), plugin(settings) as member:
        member.put(**dict.fromkeys(names, "v"))
        found, parts_ = 0, 0
        while found < len(names):
            some = [msgpack.packb(name.encode()) for name in names[found:]]
            header, _ = member.client.ask("load", "orders", len(some), payload=b"".join(some))
            assert header[0] == "entries" and header[2] == header[3] > 0
            found, parts_ = found + header[3], parts_ + 1
        assert parts_ > 1
