"""Agents, and a plug-in written in Python, for the tests of this folder."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

from imap_wal import context
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.reports import KINDS
from imap_wal.agent.process import run
from imap_wal.agent.requests import UUID
from imap_wal.agent.server import Agent
from imap_wal.agent.transport.client import AgentClient
from imap_wal.entry import MAP
from imap_wal.placement import Placed
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.local import LocalStore
from storage_backends.location import Location

_names = itertools.count(1)


def config(
    folder: Path,
    node: str = "n1",
    url: str = "",
    lifetime_timeout_s: float = 0,
    *,
    start_policy: str = "",
    start_timeout_s: float = 120,
    **log: Any,
) -> AgentConfig:
    """An agent of node `node`; its socket is in `folder`, its log too unless `url` says otherwise.
    One cluster follows another without waiting, unless `lifetime_timeout_s` says otherwise; then
    the default `start_policy` applies."""
    return AgentConfig.from_mapping(
        {
            "url": url or f"file://{folder}/log",
            "cluster": "c",
            "node": node,
            "endpoint": f"ipc://{folder}/{node}-{next(_names)}.sock",
            "lifetime_timeout_s": lifetime_timeout_s,
            "reserve_bytes": 0,
            "start_timeout_s": start_timeout_s,
            "start_policy": start_policy or ("wait-all" if lifetime_timeout_s else "partial"),
            "log": {"segment_bytes": 256 * 1024, "preallocate": False, **log},
        }
    )


_names_of: dict[str, str] = {}


def identity(name: str) -> str:
    """The UUID that replaces the name of a cluster, a member or a plug-in in these tests."""
    if not name or len(name) > 64 or re.fullmatch(UUID, name):
        return name
    found = str(uuids.uuid5(uuids.NAMESPACE_OID, name))
    _names_of[found] = name
    return found


def named(value: Any) -> Any:
    """The same with the names in place of UUIDs."""
    if isinstance(value, str):
        return re.sub(UUID, lambda found: _names_of.get(found[0], found[0]), value)
    if isinstance(value, dict):
        return {named(key): named(each) for key, each in value.items()}
    return type(value)(map(named, value)) if isinstance(value, list | tuple) else value


def identified(about: Any) -> Any:
    """The fields of a hello or a view, with UUIDs in place of names."""
    if not isinstance(about, dict):
        return about
    ids = ("cluster_id", "member_uuid", "plugin_uuid", "members", "lost")
    return {name: _identity(value) if name in ids else value for name, value in about.items()}


def _identity(value: Any) -> Any:
    if isinstance(value, list):
        return [_identity(each) for each in value]
    return identity(value) if isinstance(value, str) else value


class NamedClient(AgentClient):
    """Sends UUIDs in place of names, and returns names in place of UUIDs."""

    def post(self, kind: str, *fields: Any, payload: bytes = b"") -> int:
        if kind in ("hello", "view"):
            fields = tuple(map(identified, fields))
        return super().post(kind, *fields, payload=payload)

    def answer(self, number: int) -> tuple[list[Any], bytes]:
        header, payload = super().answer(number)
        return named(header), payload


@contextmanager
def serving(settings: AgentConfig) -> Iterator[Agent]:
    """An agent on a thread of this process, stopped cleanly at the end. Tests wait until it ends or
    has opened its log again, so its loop checks both ten times as often as in production."""
    agent = Agent(settings)
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            agent.serve()
        except BaseException as error:
            errors.append(error)

    turn = agent._turn
    agent._turn = lambda timeout_ms: turn(min(timeout_ms, 20))  # type: ignore[method-assign]
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join(30)
        assert not thread.is_alive(), "the agent hangs"
    if errors:
        raise errors[0]


def serve_in_process(settings: AgentConfig, ready: Any) -> None:
    """What a child process runs: the agent until a signal."""
    run(settings, lambda agent: ready.send_bytes(b"ready"))


def serve_until_fault(settings: AgentConfig, ready: Any, fault: Fault) -> None:
    """The same, and SIGKILL at a planned operation of the storage."""

    class Deadly(FaultyStore):
        def _strike(self, fault: Fault, operation: Any) -> BaseException:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("unreachable")

    def deadly(place: Location, **_: Any) -> Placed:
        store = LocalStore(place.url.removeprefix("file://"))
        return Placed(Deadly(store, Plan((fault,))), place)

    assert hasattr(context, "open_place")
    setattr(context, "open_place", deadly)  # noqa: B010  # it is imported there, and not exported
    serve_in_process(settings, ready)


def entry(
    key: str,
    value: str | None,
    order: tuple[int, int, int, int],
    *,
    name: str = "orders",
    expires_at_ms: int = 0,
) -> list[Any]:
    data = None if value is None else value.encode()
    return [
        name,
        key.encode(),
        "k",
        data,
        "v",
        value is None,
        1_763_720_000_000,
        expires_at_ms,
        7,
        list(order),
    ]


class Plugin:
    """A member's side: one connection, requests numbered as in the protocol."""

    def __init__(
        self,
        endpoint: str,
        cluster_id: str = "cluster-1",
        uuid: str = "plugin-1",
        timeout_ms: int = 20_000,
        member: str = "member-1",
    ) -> None:
        self.client = NamedClient(endpoint, timeout_ms)
        self.cluster_id, self.uuid, self.member = cluster_id, uuid, member
        self.session = self.incarnation = 0
        self.request = 0

    def about(self, **changes: Any) -> dict[str, Any]:
        fields = {
            "protocol": 1,
            "cluster_id": self.cluster_id,
            "member_uuid": self.member,
            "plugin_uuid": self.uuid,
            "plugin_version": "0",
            "partition_count": 271,
            "purpose": "write",
        }
        return {**fields, **changes}

    def hello(self, **changes: Any) -> dict[str, Any]:
        """Say hello; return the welcome."""
        header, _ = self.client.ask("hello", self.about(**changes))
        assert header[0] == "welcome", header
        welcome: dict[str, Any] = header[2]
        self.session, self.incarnation = welcome["session"], welcome["incarnation"]
        self.request = max(self.request, welcome["last_request"])
        return welcome

    def order(self, request: int, version: int = 1) -> tuple[int, int, int, int]:
        return self.incarnation, version, self.session, request

    def payload(self, first: int, changes: dict[str, str | None]) -> bytes:
        return b"".join(
            msgpack.packb(entry(key, value, self.order(first + index)))
            for index, (key, value) in enumerate(changes.items())
        )

    def send(self, first: int, changes: dict[str, str | None]) -> list[Any]:
        """One append of changes numbered from `first`; the answer's header without its number."""
        header, _ = self.client.ask(
            "append", self.session, first, len(changes), payload=self.payload(first, changes)
        )
        return [header[0], *header[2:]]

    def asked(self) -> list[Any]:
        """Say hello; return the answer's header without its number."""
        header, _ = self.client.ask("hello", self.about())
        return [header[0], *header[2:]]

    def put(self, **changes: str | None) -> list[Any]:
        """Append the next changes."""
        answer = self.send(self.request + 1, changes)
        self.request += len(changes)
        return answer

    def keys(self, name: str = "orders", limit: int = 100) -> list[str]:
        """All keys of a map, page by page."""
        found: list[str] = []
        cursor = None
        while True:
            header, payload = self.client.ask("keys", name, cursor, limit)
            assert header[0] == "keys", header
            page = list(msgpack.Unpacker(_fed(payload)))
            assert len(page) == header[3] <= limit
            found += [key.decode(errors="replace") for key in page]
            assert len(found) == header[4]
            cursor = header[2]
            if cursor is None:
                return sorted(found)

    def load(self, *keys: str, name: str = "orders") -> dict[str, tuple[str, int]]:
        header, payload = self.client.ask(
            "load", name, len(keys), payload=b"".join(msgpack.packb(key.encode()) for key in keys)
        )
        assert header[0] == "entries", header
        found = list(msgpack.Unpacker(_fed(payload)))
        assert len(found) == header[2]
        return {key.decode(): (value.decode(), expires) for key, value, expires in found}

    def values(self, name: str = "orders") -> dict[str, str]:
        return {key: value for key, (value, _) in self.load(*self.keys(name), name=name).items()}

    def stat(self) -> dict[str, Any]:
        header, _ = self.client.ask("stat")
        assert header[0] == "stat", header
        statistics: dict[str, Any] = header[2]
        return statistics

    def close(self) -> None:
        self.client.close()


def _fed(payload: bytes) -> Any:
    import io

    return io.BytesIO(payload)


def report(**names: list[str]) -> list[object]:
    """What a member says in a beat about the structures that its programs use."""
    return [[len(names.get(kind, ())), names.get(kind, [])] for kind in KINDS]


@contextmanager
def plugin(settings: AgentConfig, *, greet: bool = True, **options: Any) -> Iterator[Plugin]:
    """A plug-in connected to an agent."""
    connected = Plugin(settings.endpoint, **options)
    try:
        if greet:
            connected.hello()
        yield connected
    finally:
        connected.close()


def hazelcast_key(number: int) -> bytes:
    """As Hazelcast serialises a text: no partition hash, the serializer's id, the length, the
    text."""
    text = b"k%d" % number
    return bytes(4) + (-11).to_bytes(4, "big", signed=True) + len(text).to_bytes(4, "big") + text


def put_keys(member: Plugin, keys: list[bytes]) -> None:
    rows = [entry("", "v", member.order(1 + number)) for number in range(len(keys))]
    payload = b"".join(
        msgpack.packb([row[MAP], key, *row[2:]]) for row, key in zip(rows, keys, strict=True)
    )
    assert member.client.ask("append", member.session, 1, len(keys), payload=payload)[0][0] == "ack"
