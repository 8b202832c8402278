"""One member whose maps have agents of their own, and what happens when those are missing, frozen,
killed, full, or asked for too much.

At the end everything is killed, the member starts without any agent, then the agents are started
again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hazelcast
import pytest
from hazelcast.errors import HazelcastError
from hazelcast.proxy.map import BlockingMap

from imap_wal import hazelcast as hazelcast_errors
from imap_wal.context import open_context
from imap_wal.entry import KEY, ORDER, VALUE
from imap_wal.errors import NotAppended, OutcomeUnknown
from imap_wal.hazelcast import PACKAGE, LogUnavailable
from imap_wal.read.cluster import ClusterLog
from tests.cluster.cluster import connect
from tests.cluster.configuration import logged_map, member_config
from tests.cluster.gateway import gateway
from tests.cluster.history import log_view
from tests.cluster.load import Load
from tests.cluster.processes import Agent, Member
from tests.cluster.waiting import until
from tests.kit.disks import small_disk
from tests.kit.effort import every
from tests.kit.ports import free_ports

DYING = "tests.cluster.dying_agent"
MB = 1 << 20


@dataclass(repr=False)
class Bench:
    """The member, its agents by name, and what its maps contained when they were killed."""

    agents: dict[str, Agent]
    classpath: str
    folder: Path
    maps: dict[str, Any]
    disk: Path | None
    port: int = 0
    starts: int = 0
    member: Member | None = None
    client: hazelcast.HazelcastClient | None = None
    held: dict[str, dict[Any, Any]] = field(default_factory=dict)

    def start_member(self) -> None:
        self.starts += 1
        (self.port,) = free_ports(1)
        config = member_config("faults", self.port, [self.port], self.maps)
        self.member = Member(
            self.folder, f"member-{self.starts}", self.port, config, self.classpath, ["-Xmx1g"]
        )
        self.member.launch()
        self.member.wait()
        self.client = connect([self.port], "faults", default_int_type="LONG")

    def map(self, name: str) -> BlockingMap[Any, Any]:
        assert self.client is not None
        return self.client.get_map(name).blocking()

    def contents(self, name: str) -> dict[Any, Any]:
        return dict(self.map(name).entry_set())

    def data(self, value: Any) -> bytes:
        assert self.client is not None
        return bytes(self.client._context.serialization_service.to_data(value).buffer)

    def memory_equals_log(self, agent: str, name: str) -> bool:
        """Whether the member's memory and the agent's log have the same contents of a map, byte for
        byte."""
        memory = {self.data(key): self.data(value) for key, value in self.contents(name).items()}
        view = log_view(self.agents[agent].url)
        try:
            return memory == {row[KEY]: row[VALUE] for rows in view.rows(name) for row in rows}
        finally:
            view.close()

    def kill(self) -> None:
        children = [
            child
            for child in (self.member, *self.agents.values())
            if child is not None and child.running
        ]
        for child in children:
            child.send(signal.SIGKILL)
        for child in children:
            child.kill()
        if self.client is not None:
            self.client.shutdown()
            self.client = None


BAD = {
    "misspelt": (
        lambda agent: logged_map(agent, {"timeout": "5"}),
        ['"timeout"', "unknown", "timeout-ms"],
    ),
    "no-number": (
        lambda agent: logged_map(agent, {"timeout-ms": "soon"}),
        ['"timeout-ms"', '"soon"'],
    ),
    "no-flag": (
        lambda agent: logged_map(agent, {"read-through": "yes"}),
        ['"read-through"', "true or false"],
    ),
    "no-endpoint": (
        lambda agent: logged_map("http://localhost:7701"),
        ['"agent"', "http://localhost:7701"],
    ),
    "empty-endpoint": (lambda agent: logged_map(""), ['"agent"', "missing"]),
    "write-behind": (
        lambda agent: logged_map(agent, store={"write-delay-seconds": 5}),
        ["write-delay-seconds is 5", "needs 0"],
    ),
    "idle": (
        lambda agent: logged_map(agent, max_idle_seconds=60),
        ["max-idle-seconds is 60", "needs 0"],
    ),
}
QUICK = {"timeout-ms": "3000", "connect-timeout-ms": "2000"}
PATIENT = {"timeout-ms": "30000", "connect-timeout-ms": "25000"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, classpath: str) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("f")
    settings_of: dict[str, dict[str, Any]] = {
        "plain": {},
        "dying": {},
        "full": {"segment_bytes": 256 * 1024},
        "narrow": {"max_value_bytes": 100_000},
        "late": {},
        "large": {},
    }
    with small_disk(folder / "disk") as disk, contextlib.ExitStack() as stack:
        agents = {
            name: Agent(
                folder,
                name,
                (
                    (disk or folder / "no-disk") if name == "full" else folder / f"{name}-logs"
                ).as_uri(),
                **settings,
            )
            for name, settings in settings_of.items()
        }
        maps = {
            "plain-*": logged_map(agents["plain"].endpoint, QUICK),
            "dying-*": logged_map(stack.enter_context(gateway(agents["dying"].endpoint)), PATIENT),
            "full-*": logged_map(agents["full"].endpoint, QUICK),
            "large-*": logged_map(agents["large"].endpoint),
            "narrow-*": logged_map(agents["narrow"].endpoint, QUICK),
            "late-*": logged_map(agents["late"].endpoint, QUICK),
            **{f"bad-{name}": make(agents["plain"].endpoint) for name, (make, _) in BAD.items()},
        }
        bench = Bench(agents, classpath, folder, maps, disk)
        try:
            for name in ("plain", "narrow", "large", *(["full"] if disk else [])):
                agents[name].launch()
            agents["dying"].launch(DYING)
            for name in ("plain", "narrow", "large", "dying", *(["full"] if disk else [])):
                agents[name].wait()
            bench.start_member()
            yield bench
        finally:
            bench.kill()


def error_of(operation: Callable[[], object]) -> str:
    """The text of the error. Programs can use its class."""
    with pytest.raises(HazelcastError) as raised:
        operation()
    text = str(raised.value)
    named = [
        kind
        for kind in (NotAppended, OutcomeUnknown, LogUnavailable)
        if f"{PACKAGE}.{kind.__name__}: " in text
    ]
    found = hazelcast_errors.error_of(raised.value)
    assert [type(found)] == named if named else found is None, text
    return text


# ---- configuration ----


@every(3)
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_configuration_is_refused(bench: Bench, name: str) -> None:
    """The error names the map and what is wrong."""
    for operation in (
        lambda: bench.map(f"bad-{name}").put("a", 1),
        lambda: bench.map(f"bad-{name}").size(),
    ):
        text = error_of(operation)
        for words in (f'map "bad-{name}"', *BAD[name][1]):
            assert words in text


# ---- no agent ----

OPERATIONS: dict[str, Callable[[BlockingMap[Any, Any]], object]] = {
    "put": lambda entries: entries.put("a", 1),
    "set": lambda entries: entries.set("a", 1),
    "put_all": lambda entries: entries.put_all({"a": 1, "b": 2}),
    "get": lambda entries: entries.get("a"),
    "get_all": lambda entries: entries.get_all(["a", "b"]),
    "contains_key": lambda entries: entries.contains_key("a"),
    "remove": lambda entries: entries.remove("a"),
    "size": lambda entries: entries.size(),
    "is_empty": lambda entries: entries.is_empty(),
    "values": lambda entries: entries.values(),
    "key_set": lambda entries: entries.key_set(),
    "clear": lambda entries: entries.clear(),
}


def assert_all_fail(bench: Bench, name: str, endpoint: str) -> None:
    def fails(operation: str) -> None:
        start = time.monotonic()
        text = error_of(lambda: OPERATIONS[operation](bench.map(name)))
        assert endpoint in text, f"{operation}: {text}"
        assert name in text, f"{operation}: {text}"
        assert time.monotonic() - start < 15, operation

    with ThreadPoolExecutor(len(OPERATIONS)) as pool:
        list(pool.map(fails, OPERATIONS))


def test_every_operation_fails_without_an_agent(bench: Bench) -> None:
    """The error names the agent and the map."""
    late = bench.agents["late"]
    assert_all_fail(bench, "late-map", late.endpoint)
    late.start()
    until("the map is there", lambda: bench.map("late-map").put("a", 1) is None)
    assert bench.contents("late-map") == {"a": 1}


def test_a_map_without_its_agent_still_answers_reads(bench: Bench) -> None:
    """Changes are refused until the agent is back."""
    late = bench.agents["late"]
    entries = bench.map("late-map")
    entries.put("b", 2)
    assert late.stop() == 0
    for operation in ("put", "set", "put_all", "remove", "clear"):
        text = error_of(lambda operation=operation: OPERATIONS[operation](entries))
        assert "NotAppended" in text
        assert late.endpoint in text
        assert 'map "late-map"' in text
    assert bench.contents("late-map") == {"a": 1, "b": 2}
    late.start()
    until("changes are accepted again", lambda: entries.put("c", 3) is None)
    assert bench.contents("late-map") == {"a": 1, "b": 2, "c": 3}


# ---- frozen and killed ----


def test_a_put_at_a_frozen_agent_fails_in_time(bench: Bench) -> None:
    """When the agent continues, memory is settled from the log."""
    plain = bench.agents["plain"]
    entries = bench.map("plain-frozen")
    entries.put_all({"changed": "old", "removed": "old", "untouched": "old"})
    plain.send(signal.SIGSTOP)
    try:
        start = time.monotonic()
        text = error_of(lambda: entries.put("changed", "new"))
        assert time.monotonic() - start < 12  # timeout-ms is 3000
        assert "OutcomeUnknown" in text
        assert plain.endpoint in text
        assert 'map "plain-frozen"' in text
        error_of(lambda: entries.remove("removed"))
        assert bench.contents("plain-frozen") == {
            "changed": "old",
            "removed": "old",
            "untouched": "old",
        }
    finally:
        plain.send(signal.SIGCONT)
    until("memory equals the log", lambda: bench.memory_equals_log("plain", "plain-frozen"))
    until("changes are accepted again", lambda: entries.put("untouched", "new"))
    assert entries.get("changed") in ("old", "new")


def test_memory_equals_the_log_after_kills_of_the_agent(bench: Bench) -> None:
    """The agent is killed several times under load."""
    plain = bench.agents["plain"]
    assert bench.client is not None
    bench.map("plain-load").put("warm", 0)
    bench.map("plain-load").delete("warm")
    with Load(bench.client, "plain-load", threads=6) as load:
        for end in (plain.kill, plain.kill, plain.stop, plain.kill):
            acknowledged, failed = load.acknowledged + 100, load.refused + load.unknown
            until(
                f"100 changes are acknowledged; {load.errors}",
                lambda target=acknowledged: load.acknowledged > target,
            )
            end()
            until("callers get errors", lambda before=failed: load.refused + load.unknown > before)
            plain.start()
        acknowledged = load.acknowledged + 100
        until("changes are acknowledged again", lambda: load.acknowledged > acknowledged)
    assert load.refused > 0
    assert load.stale == []
    until("memory equals the log", lambda: bench.memory_equals_log("plain", "plain-load"))
    assert load.differences(bench.contents("plain-load")) == [], f"seed {load.seed}"
    orders = [
        row[ORDER]
        for changes in ClusterLog(open_context(plain.url), "default", "dev").changes()
        for row in changes.rows
    ]
    assert len(orders) == len(set(orders)), "a change is in the log twice"


@pytest.mark.parametrize("moment", ["fatal-before", "fatal-after"])
def test_a_change_sent_again_is_logged_once(bench: Bench, moment: str) -> None:
    """The agent is killed at the change: received and not appended (`fatal-before`), or durable and
    not acknowledged (`fatal-after`). Either way the caller waits, and succeeds."""
    dying = bench.agents["dying"]
    entries = bench.map("dying-map")
    entries.put("first", 1)
    done: list[object] = []
    caller = threading.Thread(target=lambda: done.append(entries.put(moment, 1)), daemon=True)
    caller.start()
    until("the agent is dead", lambda: not dying.running)
    assert done == []
    dying.kill()
    dying.start()
    caller.join(30)
    assert done == [None]
    entries.put("last", 1)
    log = ClusterLog(open_context(dying.url), "default", "dev")
    rows = [
        row for changes in log.changes() for row in changes.rows if row[KEY] == bench.data(moment)
    ]
    assert len(rows) == 1
    if moment == "fatal-before":  # for the other moment
        dying.kill()
        dying.start(DYING)


# ---- sizes ----


@pytest.mark.thorough
def test_value_of_64_mb(bench: Bench) -> None:
    value = bytearray(os.urandom(MB)) * 64
    bench.map("large-map").put("large", value)
    assert bench.map("large-map").get("large") == value
    bench.held["large"] = {"large": value}


def test_a_value_beyond_the_agents_limit_is_refused(bench: Bench) -> None:
    """The map is unchanged."""
    entries = bench.map("narrow-map")
    entries.put("a", "small")
    text = error_of(lambda: entries.put("a", "x" * 200_000))
    assert "NotAppended" in text
    assert "100000" in text
    assert 'map "narrow-map"' in text
    assert bench.contents("narrow-map") == {"a": "small"}
    entries.put("b", "x" * 90_000)


def test_a_full_disk_refuses_changes(bench: Bench) -> None:
    """The map does not change until there is space again."""
    if bench.disk is None:
        pytest.skip("no small disk can be mounted here")
    entries = bench.map("full-map")
    entries.put("first", "1")
    filler = bench.disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    stored = {"first": "1"}
    text = ""
    for number in range(60):
        try:
            entries.put(f"k{number}", "x" * 20_000)
        except HazelcastError as error:
            text = str(error)
            break
        stored[f"k{number}"] = "x" * 20_000
    assert "NotAppended" in text or "OutcomeUnknown" in text
    assert "No space left" in text or "space" in text
    assert bench.agents["full"].endpoint in text
    assert bench.contents("full-map") == stored
    error_of(lambda: entries.put("first", "x" * 20_000))
    error_of(lambda: entries.put("another", "x" * 20_000))
    assert bench.contents("full-map") == stored
    filler.unlink()
    until("there is room again", lambda: entries.put("after", "2") is None, 30)
    until("memory equals the log", lambda: bench.memory_equals_log("full", "full-map"))
    contents = bench.contents("full-map")
    assert {**contents, **stored, "after": "2"} == contents


# ---- everything killed ----

MAPS = {
    "late-map": "late",
    "plain-frozen": "plain",
    "plain-load": "plain",
    "large-map": "large",
    "dying-map": "dying",
    "narrow-map": "narrow",
    "full-map": "full",
}


@pytest.fixture(scope="module")
def before_kill(bench: Bench) -> dict[str, dict[Any, Any]]:
    """What memory contained; then everything is killed, and the member alone is started."""
    held = {
        name: bench.contents(name) for name, agent in MAPS.items() if bench.agents[agent].running
    }
    bench.kill()
    bench.start_member()
    return held


def test_no_map_looks_empty_without_its_agent(bench: Bench, before_kill: dict[str, Any]) -> None:
    """After a restart without agents, every operation fails."""
    for name in ("plain-load", "late-map"):
        assert_all_fail(bench, name, bench.agents[MAPS[name]].endpoint)


def test_maps_return_with_their_agents(bench: Bench, before_kill: dict[str, Any]) -> None:
    """Their contents are those that memory had before the kill."""
    for name in {MAPS[name] for name in before_kill}:
        bench.agents[name].launch()
    for name, contents in before_kill.items():
        until(f"{name} is back", lambda name=name: bench.map(name).size() >= 0)
        assert bench.contents(name) == contents, name
    assert before_kill["large-map"] == bench.held.get("large", before_kill["large-map"])
