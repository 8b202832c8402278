"""Attack: between a real member and its agent over TCP with keys: read the messages, change them,
take the agent's place; as a member, use a revoked key or no token."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.access import keys
from imap_wal.agent.access.peers import Peer, Right
from imap_wal.agent.transport.gate import new_pair
from rewrite_cli.local_cluster.launcher import ask_stat
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.processes import Agent
from tests.cluster.waiting import until
from tests.kit.effort import thorough
from tests.kit.ports import free_ports

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
]

SECRET = "a value that no one between them may read"
OPERATOR = new_pair("operator")


class Tap:
    """Forwards what a member and an agent send to each other, and records it. `spoil` changes a
    byte of what the member sends from then on."""

    def __init__(self, target: int) -> None:
        self.seen = bytearray()
        self.spoil = threading.Event()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                near.close()
                continue
            for source, sink, from_member in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._pass, args=(source, sink, from_member), daemon=True
                ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, from_member: bool) -> None:
        try:
            while data := bytearray(source.recv(65536)):
                self.seen += data
                if from_member and self.spoil.is_set() and len(data) > 60:
                    data[-1] ^= 1
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, sink):
                each.close()

    def close(self) -> None:
        self._listener.close()


class KeyedAgent(Agent):
    """At a TCP endpoint with keys, with an interpreter of its own."""

    def __init__(self, folder: Path, node: str, url: str, port: int) -> None:
        super().__init__(folder, node, url, endpoint=f"tcp://127.0.0.1:{port}", forked=False)
        self.pair, self.clients = new_pair(node), folder / f"{node}-clients.toml"
        keys.write_new(folder / f"{node}.key", self.pair.text(), 0o600)
        about = {"key": str(folder / f"{node}.key"), "clients": str(self.clients)}
        self.config.write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in about.items())
            + self.config.read_text()
        )

    def stat(self, timeout_ms: int = 1000) -> dict[str, Any] | None:
        return ask_stat(self.endpoint, timeout_ms, OPERATOR, self.pair.public)

    def admit(self, *pairs: keys.KeyPair) -> None:
        peers = {pair.public: Peer(pair.name, frozenset(Right)) for pair in pairs}
        keys.write_clients(
            self.clients, peers | {OPERATOR.public: Peer("operator", frozenset({Right.READ}))}
        )


class World:
    """One member, one agent, and the tap between them."""

    def __init__(self, folder: Path, classpath: str) -> None:
        (port,) = free_ports(1)
        self.folder, self.member_key, self.token = (
            folder,
            folder / "member-1.key",
            folder / "c.token",
        )
        self.agent = KeyedAgent(folder, "node-1", (folder / "logs").as_uri(), port)
        self.pair = new_pair("member-1")
        keys.write_new(self.member_key, self.pair.text(), 0o600)
        keys.write_new(self.token, "t" * 64 + "\n", 0o600)
        self.agent.admit(self.pair)
        self.tap = Tap(port)
        self.properties = {
            "agent-key-file": str(self.member_key),
            "agent-public-key": self.agent.pair.public,
            "cluster-token-file": str(self.token),
        }
        self.others: dict[str, dict[str, str]] = {}
        """Properties of maps that have others."""
        self.cluster = Cluster(
            folder,
            classpath,
            self._maps,
            agents=[self.agent],
            url=self.agent.url,
            lifetime_timeout_s=0,
        )

    def _maps(self, endpoint: str) -> dict[str, Any]:
        each = {"default": {}, **self.others}
        return {
            name: logged_map(f"tcp://127.0.0.1:{self.tap.port}", self.properties | properties)
            for name, properties in each.items()
        }

    def log(self) -> str:
        return self.agent.log.read_text()


@pytest.fixture
def world(tmp_path: Path, classpath: str) -> Iterator[World]:
    world = World(tmp_path, classpath)
    with world.cluster:
        yield world
    world.tap.close()


@thorough
def test_a_member_with_keys_and_token_keeps_its_map(world: World) -> None:
    """What is sent over the network can be neither read nor changed."""
    cluster = world.cluster
    cluster.start(1)
    orders = cluster.client().get_map("orders").blocking()
    entries = {f"k{number}": f"{SECRET} {number}" for number in range(500)}
    orders.put_all(entries)
    orders.put("large", SECRET * 100_000)
    assert orders.get("k7") == entries["k7"]

    seen = bytes(world.tap.seen)
    assert b"CURVE" in seen
    assert len(seen) > 4_000_000
    assert SECRET.encode() not in seen
    assert b"orders" not in seen
    assert b"t" * 64 not in seen

    # Bytes that were changed on the way are not accepted: the change either fails or is repeated,
    # and its value is never another.
    world.tap.spoil.set()
    with pytest.raises(Exception, match=r"NotAppended|OutcomeUnknown|LogUnavailable"):
        orders.put("k7", "changed")
    world.tap.spoil.clear()
    until("the map accepts changes again", lambda: orders.put("k8", "mine") or True, 60)
    before = dict(orders.entry_set())
    assert before.keys() == {*entries, "large"}

    cluster.kill_everything()
    cluster.start(1)
    client = cluster.client()
    restored = until("the map is there", lambda: client.get_map("orders").blocking().entry_set())
    assert dict(restored) == before
    log = world.log()
    assert log.count('"event": "log claimed"') == 2
    assert '"peer": "member-1"' in log


def test_a_member_with_an_unknown_key_gets_no_log(world: World) -> None:
    """Both sides give the reason."""
    world.agent.admit()
    world.cluster.start(1)

    def put(value: str) -> bool:
        world.cluster.client().get_map("orders").blocking().put("a", value)
        return True

    with pytest.raises(
        Exception, match="the agent does not admit the key of this member: see its file of clients"
    ):
        put("1")
    assert f'"peer": "key {world.pair.public} at 127.0.0.1"' in world.log()
    # Admitted while both run: no restart.
    world.agent.admit(world.pair)
    until("the map accepts changes", lambda: put("1"), 60)
    # A new key in the same file: the next connection has it.
    replaced = new_pair("member-1")
    world.agent.admit(replaced)
    os.remove(world.member_key)
    keys.write_new(world.member_key, replaced.text(), 0o600)
    until("the map accepts changes with the new key", lambda: put("2"), 60)
    assert world.cluster.client().get_map("orders").blocking().get("a") == "2"


@thorough
def test_an_agent_with_another_key_learns_nothing(world: World) -> None:
    """The member sends it neither the token nor a value."""
    world.properties["agent-public-key"] = new_pair("other").public
    world.cluster.start(1)
    with pytest.raises(Exception, match=r"LogUnavailable|NotAppended"):
        world.cluster.client().get_map("orders").blocking().put("a", SECRET)
    assert b"t" * 64 not in bytes(world.tap.seen)
    assert SECRET.encode() not in bytes(world.tap.seen)


@pytest.mark.thorough
def test_the_next_cluster_needs_the_token(world: World) -> None:
    """Without it, its operations fail, and the error names the reason."""
    cluster = world.cluster
    cluster.start(1)
    cluster.client().get_map("orders").blocking().put("a", "1")
    cluster.kill_everything()
    token = world.properties.pop("cluster-token-file")
    cluster.start(1)
    with pytest.raises(Exception, match=r"this log has a token, and member .* did not send it"):
        cluster.client().get_map("orders").blocking().put("a", "2")
    cluster.kill_everything()
    world.properties["cluster-token-file"] = token
    cluster.start(1)
    client = cluster.client()
    restored = until("the map is there", lambda: client.get_map("orders").blocking().get("a"))
    assert restored == "1"


UNUSABLE: dict[str, tuple[dict[str, str], str]] = {
    "one-of-two": ({"agent-public-key": ""}, "belong together"),
    "short-key": ({"agent-public-key": "00"}, "must be the 64 hexadecimal digits"),
    "no-file": ({"agent-key-file": "{folder}/none.key"}, "none.key does not exist"),
    "open-file": ({"agent-key-file": "{folder}/open.key"}, "other users may open it"),
    "no-keys": ({"agent-key-file": "{folder}/c.token"}, "has no public-key and secret-key"),
    "short-token": (
        {"cluster-token-file": "{folder}/short.token"},
        "has no token of 32 to 200 visible ASCII characters",
    ),
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory, classpath: str) -> Iterator[World]:
    """A member with a map for each of `UNUSABLE`."""
    world = World(tmp_path_factory.mktemp("wrong"), classpath)
    keys.write_new(world.folder / "open.key", world.pair.text(), 0o644)
    keys.write_new(world.folder / "short.token", "short\n", 0o600)
    for map, (properties, _) in UNUSABLE.items():
        world.others[map] = {
            name: value.replace("{folder}", str(world.folder)) for name, value in properties.items()
        }
    with world.cluster:
        world.cluster.start(1)
        yield world
    world.tap.close()


@thorough
@pytest.mark.parametrize("map", UNUSABLE)
def test_secrets_that_cannot_be_used_are_named(wrong: World, map: str) -> None:
    with pytest.raises(Exception) as caught:
        wrong.cluster.client().get_map(map).blocking().put("a", "1")
    assert UNUSABLE[map][1] in str(caught.value)
    assert wrong.pair.secret not in str(caught.value) + wrong.cluster.members[0].log.read_text()
