"""An agent's answers to keys, load and schemas: the newest entries of all nodes, complete, page by
page."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.monitoring.metrics import METRICS, Value
from imap_wal.agent.server import Agent
from imap_wal.placement import Placed
from imap_wal.schemas import Schema
from rewrite_cli.console.check import PROBLEM
from rewrite_cli.doctor.agent import agent_checks
from storage_backends import NoSpace, Unavailable
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.agent.harness import config, entry, plugin, serving
from tests.support import Threads, eventually, overwrite, segments


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


def failing(agent: Agent) -> Value:
    (metric,) = (each for each in METRICS if each.name == "imap_wal_merge_failing")
    return metric.value(agent.snapshot())


def test_pages_of_keys_have_each_key_once(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as member:
        expected = [f"k{number:04d}" for number in range(950)]
        member.put(**dict.fromkeys(expected, "v"))
        member.put(gone="v")
        member.put(gone=None)
        for limit in (1000, 100, 7):
            assert member.keys(limit=limit) == expected
        assert member.keys("nothing") == []


def test_two_listings_at_once_do_not_disturb_each_other(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as writer, plugin(settings, uuid="other") as reader:
        writer.put(**{f"k{number}": "v" for number in range(50)})
        first = reader.client.ask("keys", "orders", None, 10)[0]
        assert len(writer.keys(limit=3)) == 50
        found = first[3]
        cursor = first[2]
        while cursor is not None:
            header, _ = reader.client.ask("keys", "orders", cursor, 10)
            found, cursor = found + header[3], header[2]
        assert found == 50


def test_a_forgotten_listing_is_refused(settings: AgentConfig) -> None:
    """It does not end early as if it were complete: the error says to begin again."""
    with serving(settings), plugin(settings) as member:
        member.put(**{f"k{number}": "v" for number in range(50)})
        oldest = member.client.ask("keys", "orders", None, 1)[0][2]
        for _ in range(70):
            member.client.ask("keys", "orders", None, 1)
        header, _ = member.client.ask("keys", "orders", oldest, 1)
        assert header[2] == "listing-gone"
        assert "begin again" in header[3]
        assert len(member.keys()) == 50


def test_a_load_has_the_newest_values_of_all_nodes(tmp_path: Path) -> None:
    """Keys that are absent, deleted or expired are not in the answer."""
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    with serving(one), serving(two), plugin(one) as first, plugin(two, uuid="plugin-2") as second:
        first.put(moved="old", stays="1", deleted="1")

        # The partition migrated to the other member, so its version is greater there.
        def change(key: str, value: str | None, request: int, expires: int = 0) -> bytes:
            return msgpack.packb(
                entry(key, value, second.order(request, version=2), expires_at_ms=expires)
            )

        now = int(time.time() * 1000)
        payload = (
            change("moved", "new", 1)
            + change("deleted", None, 2)
            + change("expired", "x", 3, now - 1)
            + change("later", "y", 4, now + 10**6)
        )
        assert second.client.ask("append", second.session, 1, 4, payload=payload)[0][0] == "ack"
        first.put(moved="a late write under the old version")
        for member in (first, second):
            found = member.load("moved", "stays", "deleted", "expired", "later", "absent")
            assert found == {"moved": ("new", 0), "stays": ("1", 0), "later": ("y", now + 10**6)}
            assert member.keys() == ["later", "moved", "stays"]


def test_a_read_sees_what_was_acknowledged_just_before_it(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as member:
        for number in range(100):
            member.put(counter=str(number))
            assert member.load("counter") == {"counter": (str(number), 0)}


def test_a_read_sees_the_log_through_rotation_and_archive(tmp_path: Path) -> None:
    settings = config(tmp_path, segment_bytes=2000, max_total_wal_size=6000)
    with serving(settings), plugin(settings) as member:
        for number in range(300):
            member.put(**{f"k{number % 40}": str(number)})
            if number % 25 == 0:
                assert member.load(f"k{number % 40}") == {f"k{number % 40}": (str(number), 0)}
        expected = {f"k{number % 40}": str(number) for number in range(300)}
        assert member.values() == expected
        assert member.stat()["archive_error"] == ""
    with serving(settings), plugin(settings) as member:
        assert member.values() == expected


def test_schemas_are_read_after_a_restart_and_an_archive(settings: AgentConfig) -> None:
    types = [
        Schema("order", (("number", 11), ("state", 17))),
        Schema("x" * 500, (("a", 1),)),
        Schema("empty", ()),
    ]
    schemas = [["schema", schema.id, schema.to_bytes()] for schema in types]
    assert min(schema.id for schema in types) < 0 < max(schema.id for schema in types)
    with serving(settings), plugin(settings) as member:
        payload = b"".join(msgpack.packb(schema) for schema in schemas)
        assert member.client.ask("metadata", member.session, 3, payload=payload)[0][:1] == ["ack"]
        assert member.client.ask("metadata", member.session, 1, payload=msgpack.packb(schemas[0]))[
            0
        ][2:] == [0, 1]
    for archived in (False, True):
        with serving(settings) as agent, plugin(settings) as member:
            header, payload = member.client.ask("schemas")
            assert header[2] == 3
            unpacker = msgpack.Unpacker()
            unpacker.feed(payload)
            assert sorted(map(tuple, unpacker)) == sorted(
                (number, data) for _, number, data in schemas
            )
            if not archived:
                member.put(a="1")
                agent._log.archive()


def test_many_schemas_are_sent_in_several_answers(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer has the start of the next one."""
    monkeypatch.setattr("imap_wal.agent.reads.reads.ANSWER_BYTES", 100)
    types = [Schema(f"type {number}", (("a", 1),)) for number in range(7)]
    with serving(settings), plugin(settings) as member:
        payload = b"".join(
            msgpack.packb(["schema", schema.id, schema.to_bytes()]) for schema in types
        )
        assert (
            member.client.ask("metadata", member.session, len(types), payload=payload)[0][0]
            == "ack"
        )
        found: list[int] = []
        after: list[int | None] = []
        while not found or after[0] is not None:
            header, payload = member.client.ask("schemas", *after)
            assert 1 <= header[2] < 7
            unpacker = msgpack.Unpacker()
            unpacker.feed(payload)
            found += [number for number, _ in unpacker]
            after = [header[3]]
        assert found == sorted(schema.id for schema in types)


@pytest.mark.parametrize("memory_bytes", [1 << 26, 1 << 15], ids=["in memory", "on scratch"])
def test_maps_that_have_entries_are_named(memory_bytes: int, tmp_path: Path) -> None:
    """Tombstones count, and a wrong name does not prevent the answer for the others."""
    settings = config(tmp_path, restore_memory_bytes=memory_bytes)
    names = ["orders", "nothing", "later"]
    with serving(settings), plugin(settings) as member:
        assert member.client.ask("maps", names)[0] == ["maps", 2, [], {}]
        member.put(**{f"k{number}": "v" * 100 for number in range(200)})
        assert member.client.ask("maps", names)[0][2] == ["orders"]
        member.put(**dict.fromkeys((f"k{number}" for number in range(200)), None))
        assert member.client.ask("maps", names)[0][2] == ["orders"], "tombstones count"
        assert member.client.ask("maps", [])[0][2] == []
        for wrong in ([3], "orders/"):
            assert member.client.ask("maps", wrong)[0][2] == "bad-request", wrong
        known, bad = member.client.ask("maps", ["orders", "x" * 5000])[0][2:]
        assert known == ["orders"] and set(bad) == {"x" * 5000}, (
            "one wrong name does not prevent the answer for the others"
        )
    with serving(settings), plugin(settings) as member:
        assert member.client.ask("maps", names)[0][2] == ["orders"]


def test_a_read_error_stays_until_a_read_succeeds(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imap_wal.agent.reads.merges.FRESH_LOOK_S", 0.01)
    with serving(settings) as agent, plugin(settings) as member:
        member.put(a="1")
        with monkeypatch.context() as patch:
            patch.setattr(agent._reads._view, "keys", lambda *arguments: 1 // 0)
            assert member.client.ask("keys", "orders", None, 10)[0][0] == "error"
        looks, merges = [], agent._reads.merges
        refresh = merges.without_request
        monkeypatch.setattr(
            merges, "without_request", lambda *a, **k: (looks.append(1), refresh(*a, **k))[1]
        )
        eventually(lambda: len(looks) > 5, "it looks whether there is something to merge")
        assert agent._reads.worker.state.error
        assert member.keys() == ["a"]
        eventually(lambda: not agent._reads.worker.state.error, "a read has succeeded")


def test_much_that_was_appended_is_merged_without_a_request(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imap_wal.agent.reads.merges.FRESH_BYTES", 10_000)
    monkeypatch.setattr("imap_wal.agent.reads.merges.FRESH_LOOK_S", 0.01)
    with serving(settings) as agent, plugin(settings) as member:
        view = agent._reads._view
        hashed: list[int] = []
        monkeypatch.setattr(view, "hash_keys", hashed.append)
        member.put(**{f"k{number}": "v" * 100 for number in range(200)})
        assert member.keys("nothing") == [], (
            "logs that no client reads are not merged in advance; from now on they are"
        )
        before, reads = view.ends(), agent._reads.served
        member.put(a="1")
        assert view.ends() == before, "a small amount waits for a request"
        member.put(**{f"k{number}": "w" * 100 for number in range(200)})
        eventually(lambda: view.load("orders", [b"k199"])[0][3] == b"w" * 100, "it is merged")
        assert agent._reads.served == reads
        eventually(lambda: member.stat()["unmerged_bytes"] < 10_000, "it is counted as merged")
        assert set(hashed) == {member.about()["partition_count"]}, (
            "its keys are hashed before a member asks for some partitions"
        )
        assert member.load("k7")["k7"] == ("w" * 100, 0)


def test_a_long_read_does_not_delay_a_write(settings: AgentConfig) -> None:
    with (
        serving(settings) as agent,
        plugin(settings) as writer,
        plugin(settings, uuid="reader") as reader,
    ):
        writer.put(**{f"k{number}": "v" for number in range(100)})
        with agent._reads._view._lock:  # a merge under way
            listing = Threads(reader.keys)
            assert writer.put(a="1")[0] == "ack"
            assert writer.stat()["reads"] == 0
        listing.join()


def test_an_answer_ends_before_its_size_limit(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load of many large values is answered in parts."""
    monkeypatch.setattr("imap_wal.agent.reads.reads.ANSWER_BYTES", 1000)
    with serving(settings), plugin(settings) as member:
        keys = [f"k{number}" for number in range(10)]
        member.put(**dict.fromkeys(keys, "x" * 400))
        header, _ = member.client.ask(
            "load", "orders", 10, payload=b"".join(msgpack.packb(key.encode()) for key in keys)
        )
        assert header[2:] == [2, 2], "not all that are looked up at once"


def test_reads_that_waited_together_share_one_look_at_the_storage(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [f"reader{number}" for number in range(8)]
    with serving(settings) as agent, plugin(settings) as writer, ExitStack() as stack:
        members = [stack.enter_context(plugin(settings, uuid=uuid)) for uuid in readers]
        writer.put(a="1")
        view, looks = agent._reads._view, []
        catch_up = view.catch_up
        monkeypatch.setattr(view, "catch_up", lambda: looks.append(1) or catch_up())
        with view._lock:  # the first one looks, the others wait
            first = Threads(lambda: members[0].load("a"))
            eventually(lambda: looks, "the first one looks")
            writer.put(a="2")
            answers: list[Any] = []
            others = Threads(
                *[lambda member=member: answers.append(member.load("a")) for member in members[1:]]
            )
            eventually(lambda: agent._reads._arrived == len(readers), "all have asked")
        first.join()
        others.join()
        assert answers == [{"a": ("2", 0)}] * 7, "what was acknowledged before they asked"
        assert len(looks) == 2


def test_a_read_that_finds_damage_names_the_file(tmp_path: Path, memory: MemoryStore) -> None:
    """Writes continue."""
    settings = config(tmp_path, url=memory.url, segment_bytes=600)
    with serving(settings), plugin(settings) as member:
        for number in range(20):
            member.put(**{f"k{number}": "v" * 50})
        path = segments(memory)[0]
        data = bytearray(memory.read(path))
        data[len(data) // 2] ^= 1
        overwrite(memory, path, bytes(data))
        header, _ = member.client.ask("keys", "orders", None, 10)
        assert header[2] == "restore-failed"
        assert path in header[3]
        assert member.put(a="1")[0] == "ack"
        (check,) = (
            each for each in agent_checks(settings.endpoint) if each.name == "agent's merge"
        )
        assert check.status == PROBLEM
        assert path in check.what


def test_a_read_that_fails_names_the_storage_error(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next read works."""
    faulty = FaultyStore(memory)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(faulty, place))
    settings = config(tmp_path, url=memory.url)
    with serving(settings) as agent, plugin(settings) as member:
        member.put(a="1")
        faulty._seen, faulty.plan = [0], Plan((Fault("error", kind="list", error=Unavailable),))
        header, _ = member.client.ask("keys", "orders", None, 10)
        assert header[2] == "storage"
        assert "planned fault" in header[3]
        assert "planned fault" in agent.statistics()["merge_error"]
        assert failing(agent) == 1
        assert member.values() == {"a": "1"}
        assert agent.statistics()["merge_error"] == ""
        assert failing(agent) == 0


def test_an_agent_without_requests_merges_again_after_a_failure(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would report the error of one moment until the next request."""
    monkeypatch.setattr("imap_wal.agent.reads.merges.AGAIN_S", 0.01)
    monkeypatch.setattr("imap_wal.agent.reads.merges.FRESH_LOOK_S", 0.01)
    faulty = FaultyStore(memory)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(faulty, place))
    settings = config(tmp_path, url=memory.url)
    with serving(settings) as agent, plugin(settings) as member:
        member.put(a="1")
        faulty._seen, faulty.plan = [0], Plan((Fault("error", kind="list", error=Unavailable),))
        assert member.client.ask("keys", "orders", None, 10)[0][2] == "storage"
        eventually(lambda: not failing(agent), "it merges again")


def test_failing_requests_do_not_delay_the_next_merge(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member asks again and again while the storage is down for a moment. When it is up, and the
    member asks no more, the agent notices soon."""
    monkeypatch.setattr("imap_wal.agent.reads.merges.FRESH_LOOK_S", 0.01)
    faulty = FaultyStore(memory)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(faulty, place))
    settings = config(tmp_path, url=memory.url)
    with serving(settings) as agent, plugin(settings) as member:
        member.put(a="1")
        down = Fault("error", kind="list", error=Unavailable, times=0)
        faulty._seen, faulty.plan = [0], Plan((down,))
        for _ in range(10):
            assert member.client.ask("keys", "orders", None, 10)[0][2] == "storage"
        faulty.plan = Plan(())
        eventually(lambda: not failing(agent), "it merges again")


def test_a_merge_that_fails_unexpectedly_is_reported(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scratch disk is full, for example."""
    with serving(settings) as agent, plugin(settings) as member:
        member.put(a="1")
        with monkeypatch.context() as patch:
            patch.setattr(agent._reads._view, "catch_up", lambda: 1 // 0)
            assert member.client.ask("keys", "orders", None, 10)[0][2] == "restore-failed"
            assert failing(agent) == 1
        assert member.keys() == ["a"]
        assert failing(agent) == 0


def test_an_unexpected_error_in_a_read_is_answered(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next read works."""
    with serving(settings) as agent, plugin(settings) as member:
        member.put(a="1")
        with monkeypatch.context() as patch:
            patch.setattr(agent._reads._view, "keys", lambda *arguments: 1 // 0)
            header, _ = member.client.ask("keys", "orders", None, 10)
            assert header[2] == "restore-failed"
            assert "ZeroDivisionError" in header[3]
        assert member.keys() == ["a"]


def test_an_agent_on_a_full_disk_still_serves_reads(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyStore(memory)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(faulty, place))
    settings = config(tmp_path, url=memory.url)
    with serving(settings), plugin(settings) as member:
        member.put(a="1")
        faulty._seen, faulty.plan = (
            [0],
            Plan((Fault("error", kind="append|open_append|create", times=0, error=NoSpace),)),
        )
        assert member.put(b="2")[:2] == ["error", "full"]
        assert member.values() == {"a": "1"}
        assert not member.stat()["healthy"]


def test_statistics_say_what_the_agent_does(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings, greet=False) as stranger:
        stat = stranger.stat()
        assert stat["healthy"] is True
        assert stat["failure"] == ""
        assert (stat["node"], stat["epoch"], stat["durability"]) == ("n1", 1, "always")
        stranger.hello()
        stranger.put(a="1", b="2")
        stranger.keys()
        stat = stranger.stat()
        assert (stat["appends"], stat["duplicates"], stat["reads"]) == (2, 0, 2)
        assert stat["commit"]["commits"] == 2
        assert stat["ring"]["slots"] == 4096
        assert stat["position"] > "00000001.00000001."


def test_a_restarted_agent_continues_its_log(settings: AgentConfig) -> None:
    """Each start has a new epoch, the same session and the next request."""
    for life in range(3):
        with serving(settings) as agent, plugin(settings) as member:
            assert (agent.statistics()["epoch"], member.session, member.request) == (
                life + 1,
                1,
                life,
            )
            member.put(**{f"life{life}": "v"})
    agent = Agent(settings)
    assert agent._log.node_log.recovery.clean
    agent.stop()
    agent.serve()
