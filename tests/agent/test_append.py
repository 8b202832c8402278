"""What a member sends is in the log when it is acknowledged, and answers are in order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal import entry as entries
from imap_wal import format
from imap_wal.agent import requests
from imap_wal.agent.config import AgentConfig
from imap_wal.segment.reader import SegmentReader
from storage_backends import open_store
from tests.agent.harness import config, named, plugin, serving
from tests.kit.agents import live, logged
from tests.kit.effort import every
from tests.support import Threads, segments


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
            "settling": True,
            "reports": True,
            "durable": True,
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
        ("digests", "m", bytes(16), [0]),
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
        assert "protocol 1, the plug-in 2: upgrade the agent first" in header[3]
        assert member.put(a="1")[:2] == ["error", "not-ready"]


@pytest.mark.parametrize(
    ("spoken", "offered", "common"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 1), (1, 3), 1),
        ((1, 3), (1, 0), 1),
        ((1, 3), (2, 0), 2),
        ((1, 3), (2, 5), 3),
        ((2, 3), (1, 0), "plug-in"),
        ((2, 3), (4, 5), "agent"),
    ],
)
def test_agent_and_plug_in_use_the_highest_common_version(
    settings: AgentConfig,
    monkeypatch: pytest.MonkeyPatch,
    spoken: tuple[int, int],
    offered: tuple[int, int],
    common: int | str,
) -> None:
    """The error of two that share none says which of them to upgrade first."""
    monkeypatch.setattr(requests, "OLDEST", spoken[0])
    monkeypatch.setattr(requests, "NEWEST", spoken[1])
    with serving(settings), plugin(settings, greet=False) as member:
        about = member.about(protocol=offered[0], protocol_max=offered[1])
        for more in ({}, {"view": "not a number"}):
            header, _ = member.client.ask("hello", {**about, **more})
            if isinstance(common, str):
                assert header[2] == "unsupported-version"
                assert f"upgrade the {common} first" in header[3]
            elif not more:
                assert header[2]["protocol"] == common
            else:
                assert header[2] == "bad-request"


def test_a_reading_connection_leaves_the_writing_one_open(settings: AgentConfig) -> None:
    """A hello with purpose "read" does not supersede the same plug-in's connection for writes."""
    with serving(settings), plugin(settings) as writer, plugin(settings, greet=False) as reader:
        assert reader.hello(purpose="read")["session"] == writer.session
        assert writer.put(a="1")[0] == "ack"
        assert reader.values() == {"a": "1"}
        assert reader.put(b="1")[:2] == ["error", "superseded"]


@every(3)
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
    greeted = threading.Barrier(8)
    with serving(settings) as agent:

        def write(number: int) -> None:
            with plugin(settings, uuid=f"plugin-{number}") as member:
                greeted.wait(60)
                for each in range(60):
                    assert member.put(**{f"{number}.{each}": "v"})[0] == "ack"

        Threads(*[lambda number=number: write(number) for number in range(8)]).join()
        commits = agent.statistics()["commit"]
        assert commits["records"] == 480 + 8, "and each member itself"
        assert commits["syncs"] < 480
    assert len(live(settings)) == 480


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
            large: dict[str, str | None] = {
                f"k{number}": "v" * 2000 for number in range(400)
            }  # the two after it have arrived when its turn ends
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
            ]  # the refused appends are skipped


def test_each_session_is_recorded_in_the_log(settings: AgentConfig) -> None:
    """With its cluster, its member, its node, its number and its incarnation."""
    with serving(settings), plugin(settings), plugin(settings, uuid="plugin-2"):
        pass
    store = open_store(settings.url)
    metadata = [
        tuple(item)
        for path in segments(store)
        for frame in SegmentReader(store, path).whole_frames()
        if frame.kind == format.METADATA
        for item in entries.values(frame.payload)
    ]
    assert named(metadata) == [
        ("member", "cluster-1", "member-1", "n1", 1, 1),
        ("member", "cluster-1", "member-1", "n1", 2, 1),
    ]
