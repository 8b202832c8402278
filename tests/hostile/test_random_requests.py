"""Attack: many random requests. None ends the agent, and the log remains readable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as options
from hypothesis import strategies as st

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.transport.router import parts
from imap_wal.context import Context
from imap_wal.entry import ORDER
from imap_wal.layout import Identity
from imap_wal.retention.archive import archive_sealed
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from storage_backends import open_store
from tests.agent.harness import (
    NamedClient,
    Plugin,
    config,
    entry,
    identified,
    identity,
    plugin,
    serving,
)
from tests.hostile.peers import agent_process
from tests.kit.effort import brief, share
from tests.kit.malformed import nested, pack

CLUSTER, MEMBER, FUZZ, LOST = map(identity, ("cluster-1", "member-1", "fuzz", "gone"))


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


ANSWERS = frozenset(
    [
        "error",
        "welcome",
        "view",
        "ack",
        "keys",
        "list",
        "entries",
        "maps",
        "schemas",
        "stat",
        "beat",
        "bye",
    ]
)
CODES = frozenset(
    [
        "bad-request",
        "not-ready",
        "unsupported-version",
        "superseded",
        "void-incarnation",
        "too-large",
        "schema-refused",
        "listing-gone",
        "full",
    ]
)

numbers = st.one_of(
    st.integers(-3, 300),
    st.sampled_from(
        [2**24, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)]
    ),
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    st.floats(),
    st.sampled_from([1.0, 0.0, float("nan")]),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from(["orders", CLUSTER, "write", "", "m" * 256, "💥" * 90]),
)
structures = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=6,
)
deep = st.builds(
    nested,
    st.sampled_from([2, 500, 512, 900, 1000, 1024, 5000]),
    st.sampled_from([b"\x91", b"\x81\x01", b"\x81\xa1x"]),
)
junk = st.one_of(structures.map(pack), deep, st.binary(max_size=12))
"""Bytes in place of a value."""


@st.composite
def like(draw: st.DrawFn, *good: Any) -> bytes:
    """Values, mostly of the right types. Sometimes one is replaced, repeated or missing."""
    parts = [pack(value) for value in good]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        at = draw(st.integers(0, len(parts) - 1))
        parts[at] = draw(junk)
    if draw(st.integers(0, 9)) == 0:
        parts = draw(st.permutations(parts))
    if draw(st.integers(0, 9)) == 0:
        parts = parts[: draw(st.integers(0, len(parts)))]
    length = len(parts) if draw(st.integers(0, 9)) else draw(st.integers(0, 15))
    return bytes([0x90 | length]) + b"".join(parts)


@st.composite
def fields(draw: st.DrawFn, good: dict[str, Any], *kept: str) -> bytes:
    """A map in which some fields are replaced or missing. `kept`: no other text here, because it
    would be a valid claim."""
    parts = {pack(name): pack(value) for name, value in good.items()}
    for name in draw(st.lists(st.sampled_from(sorted(good)), max_size=2)):
        wrong = (
            st.one_of(
                st.integers().filter(lambda number: abs(number) < 2**63).map(pack),
                deep,
                st.none().map(pack),
            )
            if name in kept
            else junk
        )
        parts[pack(name)] = draw(wrong)
    if draw(st.integers(0, 4)) == 0:
        parts[draw(junk)] = draw(junk)
    for name in draw(st.lists(st.sampled_from(sorted(good)), max_size=1)):
        parts.pop(pack(name), None)
    return bytes([0x80 | len(parts)]) + b"".join(name + value for name, value in parts.items())


KINDS = (
    "hello",
    "view",
    "append",
    "append",
    "append",
    "metadata",
    "keys",
    "list",
    "load",
    "maps",
    "schemas",
    "stat",
    "beat",
    "bye",
    "junk",
)


@st.composite
def messages(draw: st.DrawFn, member: Plugin, number: int) -> tuple[bytes, bytes]:
    """Header and payload."""
    kind = draw(st.sampled_from(KINDS))
    head = pack(kind) + (pack(number) if draw(st.integers(0, 9)) else draw(junk))
    session, first, count = member.session, draw(st.integers(1, 5)), draw(st.integers(1, 3))
    payload = draw(st.one_of(st.just(b""), st.just(b""), junk))
    if kind == "junk":
        return draw(st.one_of(st.binary(max_size=40), junk, like(kind, number))), payload
    if kind in ("hello", "view"):
        good = (
            identified(member.about())
            if kind == "hello"
            else {
                "cluster_id": CLUSTER,
                "member_uuid": FUZZ,
                "members": [FUZZ, MEMBER],
                "lost": [LOST],
            }
        )
        kept = ("cluster_id",) if kind == "hello" else ("members", "lost", "cluster_id")
        return b"\x93" + head + draw(fields(good, *kept)), payload
    if kind == "append":
        order = member.order(first)
        rows = [
            entry(
                f"k{at}",
                draw(st.sampled_from(["v", None])),
                (*order[:3], first + at),
                name="fuzzed",
            )
            for at in range(count)
        ]
        payload = b"".join(draw(like(*row[:9], list(row[ORDER]))) for row in rows)
        return draw(like(kind, number, session, first, count)), payload
    if kind == "metadata":
        return draw(like(kind, number, session, 1)), draw(like("schema", 7, b"bytes"))
    if kind == "keys":
        return draw(like(kind, number, "fuzzed", None, 10)), payload
    if kind == "list":
        return draw(like(kind, number, "fuzzed", None, 10, [1, 2])), payload
    if kind == "load":
        return draw(like(kind, number, "fuzzed", count)), draw(
            st.one_of(st.just(pack(b"k0") * count), junk)
        )
    return draw(like(kind, number, *([["fuzzed", "orders"]] if kind == "maps" else []))), payload


class Fuzzer:
    """A peer that sends random requests, and a member beside it that must not be affected.

    The answer may depend on time: a read that is sent with a hello is served before or after it. So
    the first failure is raised unchanged. Hypothesis would try the example again, find another
    answer, and report that instead."""

    def __init__(self, settings: AgentConfig, together: int) -> None:
        self.together = together
        self._endpoint = settings.endpoint
        self._good = Plugin(settings.endpoint)
        self._expected: dict[str, str] = {}
        self._puts = 0
        self._fuzzing = Plugin(settings.endpoint, uuid="fuzz-plugin", member=FUZZ)
        self._fuzzing.hello()
        self._failure: Exception | None = None

    def attack(self, examples: int, first_seed: int) -> None:
        """Send `together` messages, `examples` times."""

        @seed(first_seed)
        @options(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def attack(data: st.DataObject) -> None:
            if self._failure is not None:
                raise self._failure
            try:
                self._send_and_check(data)
            except (AssertionError, OSError) as error:
                self._failure = error
                raise

        try:
            attack()
        finally:
            if self._failure is not None:
                raise self._failure

    def _send_and_check(self, data: st.DataObject) -> None:
        fuzzing, good, together = self._fuzzing, self._good, self.together
        fuzzing.client.close()
        fuzzing.client = NamedClient(self._endpoint, 20_000)
        if data.draw(st.booleans()):
            fuzzing.hello()
        socket = fuzzing.client._socket
        sent = answered = 0
        while answered < together:
            # Several at once, as many as may wait in the agent, or one after the other: each is
            # served.
            for _ in range(min(data.draw(st.sampled_from([1, 5, together])), together - sent)):
                socket.send_multipart(data.draw(messages(fuzzing, sent + 1)))
                sent += 1
            assert socket.poll(20_000), f"{sent - answered} messages are not answered"
            answered += 1
            header = parts(socket.recv())[0]
            assert header[0] in ANSWERS
            assert header[0] != "error" or header[2] in CODES
        assert not socket.poll(0), "one message has two answers"
        good.hello()
        self._puts += 1
        key, value = f"key-{self._puts % 50}", str(self._puts)
        assert good.put(**{key: value})[0] == "ack"
        self._expected[key] = value

    def end(self) -> None:
        """The member still reads what it wrote."""
        assert self._good.stat()["healthy"]
        assert self._good.values() == self._expected
        self._good.close()
        self._fuzzing.close()


def read_whole(settings: AgentConfig) -> None:
    """Everything that was logged can be opened, archived and restored."""
    store = open_store(settings.url)
    log = open_node_log(
        LogContext(
            Context(store),
            Identity("default", "c", "n1"),
            Settings(),
        ),
        holder="the test",
    )
    archive_sealed(Context(store), log.identity.node_folder, "n1", log.manifests)
    log.close()
    with serving(settings), plugin(settings) as member:
        for name in ("orders", "fuzzed"):
            member.values(name)


def test_no_request_ends_the_agent_or_damages_the_log(settings: AgentConfig) -> None:
    """The log can be read after all of these requests."""
    with serving(settings):
        fuzzer = Fuzzer(settings, together=20)
        fuzzer.attack(share(40, ci=25), first_seed=0)
        fuzzer.end()
    read_whole(settings)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_200_000_requests_neither_damage_the_log_nor_fill_memory(
    settings: AgentConfig, tmp_path: Path
) -> None:
    """To an agent in a process of its own. Hypothesis keeps what it drew in one run: these are 40
    runs of 100 examples, each with the number of the run as its seed."""
    memory: list[int] = []
    with agent_process(settings, tmp_path) as agent:
        fuzzer = Fuzzer(settings, together=50)
        for run in range(brief(40)):
            fuzzer.attack(100, first_seed=run)
            memory.append(agent.memory)
        fuzzer.end()
    print(f"memory of the agent in MiB, after each run: {[each >> 20 for each in memory]}")
    assert max(memory) - memory[0] < 32 * 1024 * 1024
    read_whole(settings)
