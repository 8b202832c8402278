"""The wire between agents: golden bytes, rights, and what is not served."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal.agent.access import keys
from imap_wal.agent.access.peers import Peer, Right
from imap_wal.agent.bounds import Bounds
from imap_wal.agent.lines import Lines
from imap_wal.agent.own_disk.serving import TailServer
from imap_wal.agent.own_disk.tails import AgentTails
from imap_wal.agent.transport.client import AgentClient
from imap_wal.agent.transport.network import NetworkRouter
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.context import Context
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from imap_wal.placement.router import OwnDiskStore, Unasked
from imap_wal.worker import Worker
from storage_backends import NotFound, Unavailable
from storage_backends.local import LocalStore
from tests.agent.harness import Plugin, plugin, serving
from tests.kit.keyed_agents import AGENT, MEMBER, READER, STRANGER
from tests.kit.own_disks import own_disk_config
from tests.kit.ports import free_port

GOLDEN = Path(__file__).parents[1] / "golden"
NODE = "prod/eu/nodes/n1"
SEGMENT = f"{NODE}/wal/00000003-00000008.wal"


def golden(name: str) -> tuple[bytes, bytes]:
    lines = (GOLDEN / f"{name}.hex").read_text().split("\n")
    return bytes.fromhex(lines[0]), bytes.fromhex(lines[1])


@contextlib.contextmanager
def served(folder: Path, endpoint: str) -> Iterator[LocalStore]:
    """The disk that a server without keys serves."""
    disk, root = LocalStore(str(folder / "disk")), LocalStore(str(folder / "root"))
    clock = SystemClock()
    server = TailServer(
        OwnDiskStore(root, disk, NODE, Unasked(root)), endpoint, None, clock, Lines(clock)
    )
    try:
        yield disk
    finally:
        server.close()


def asked(client: AgentClient, header: bytes) -> bytes:
    client._socket.send_multipart([header, b""])
    assert client._socket.poll(20_000), "no answer"
    return client._socket.recv()


def test_the_answers_have_the_golden_bytes(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with served(tmp_path, endpoint) as disk:
        disk.create(f"{NODE}/wal/00000003-00000007.wal", bytes(64 * 1024 * 1024))
        disk.create(SEGMENT, b"IMA\0\0\0\0\0")
        disk.create(f"{NODE}/wal/0b0f0ee5-9f0c-4c3a-8d1e-0123456789ab.log", b"")
        disk.create(f"{NODE}/wal/00000003-ab.writer", b"")
        client = AgentClient(endpoint)
        for request in ("wire-tail", "wire-tail-read"):
            answer = asked(client, golden(request)[0])
            header, payload = golden(f"{request}-answer")
            assert answer == len(header).to_bytes(4, "big") + header + payload, request
        client.close()


def test_only_segments_of_this_node_are_served(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    (tmp_path / "secret").write_text("secret")
    with served(tmp_path, endpoint) as disk:
        disk.create(SEGMENT, b"x")
        disk.create("prod/eu/nodes/n2/wal/00000001-00000001.wal", b"x")
        disk.create(f"{NODE}/wal/id.log", b"x")
        client = AgentClient(endpoint)
        for path in (
            "../secret",
            f"{NODE}/wal/../../../../../../secret",
            f"{NODE}/wal/id.log",
            f"{NODE}/wal/00000001-00000009.wal",
            "prod/eu/nodes/n2/wal/00000001-00000001.wal",
            f"/{SEGMENT}",
            "",
        ):
            header, payload = client.ask("tail-read", path, 0, 100)
            assert header[0] == "error", path
            assert header[2] in ("not-found", "bad-request"), path
            assert not payload
        assert client.ask("tail", "prod/eu/nodes/n2")[0][2] == "not-found"
        for length in (0, 2**23, -1, True):
            assert client.ask("tail-read", SEGMENT, 0, length)[0][2] == "bad-request"
        assert client.ask("stat")[0][2] == "bad-request"
        assert client.ask("tail-read", SEGMENT, 0, 100)[1] == b"x"
        client.close()


def test_a_member_address_serves_no_segments(tmp_path: Path) -> None:
    settings = own_disk_config(tmp_path, "n1")
    with serving(settings), plugin(settings) as member:
        assert isinstance(member, Plugin)
        assert member.client.ask("tail", "default/c/nodes/n1")[0][2] == "bad-request"
        assert member.put(a="1")[0] == "ack", "its session is not ended"


def write_files(folder: Path, rights: dict[str, set[Right]]) -> dict[str, Any]:
    pairs = {"agent": AGENT, "member": MEMBER, "reader": READER}
    keys.write_new(folder / "agent.key", AGENT.text(), 0o600)
    clients = {pairs[name].public: Peer(name, frozenset(given)) for name, given in rights.items()}
    keys.write_clients(folder / "clients.toml", clients)
    return {"key": str(folder / "agent.key"), "clients": str(folder / "clients.toml")}


def test_only_keys_with_the_right_to_read_get_segments(tmp_path: Path) -> None:
    files = write_files(tmp_path, {"reader": {Right.READ}, "member": {Right.WRITE}})
    settings = own_disk_config(tmp_path, "n1", changes=files)
    node, clock = "default/c/nodes/n1", SystemClock()
    root = LocalStore(str(tmp_path / "root"))
    with serving(settings):

        def tails(key: Any) -> AgentTails:
            return AgentTails(root, key, clock)

        assert [file.path for file in tails(READER).files(node)]
        for key, why in ((MEMBER, "no right 'read'"), (STRANGER, "does not admit")):
            with pytest.raises(Unavailable, match=why):
                tails(key).files(node)
        with pytest.raises(Unavailable):
            tails(None).files(node)


def test_another_process_at_the_address_is_not_the_agent(tmp_path: Path) -> None:
    """The agent's address and its key are in the root, so a process that only took the address is
    not trusted."""
    files = write_files(tmp_path, {"agent": {Right.READ}})
    settings = own_disk_config(tmp_path, "n1", changes=files)
    node, root = "default/c/nodes/n1", LocalStore(str(tmp_path / "root"))
    with serving(settings):
        pass
    pose = own_disk_config(tmp_path / "pose", "n1", port=int(settings.served_at.split(":")[-1]))
    (tmp_path / "pose").mkdir()
    with serving(pose):
        tails = AgentTails(root, AGENT, SystemClock())
        with pytest.raises(Unavailable):
            tails.files(node)
        tails.close()


@pytest.mark.parametrize(
    "header", [["tail"], ["tail", 1, 7], ["tail", 1, [["a"]]], ["tail", 1, [["a", "b"]]], [1, 1]]
)
def test_an_answer_of_another_form_is_not_used(tmp_path: Path, header: list[Any]) -> None:
    """Whatever listens at an address in a manifest, the reader gets `Unavailable` and continues."""
    clock, randomness = SystemClock(), SystemRandomness()
    root, endpoint = LocalStore(str(tmp_path)), f"tcp://127.0.0.1:{free_port()}"
    manifest = NodeManifest(address=endpoint, directory="d")
    NodeManifestLog(Context(root, clock=clock, randomness=randomness), NODE).publish(0, manifest)
    other = NetworkRouter(endpoint, Bounds(), None, SystemClock(), Lines(SystemClock()))

    def answer(worker: Worker) -> bool:
        for message in other.receive(50):
            other.send(message.sender, header)
        return True

    worker = Worker("answers", answer)
    worker.start()
    tails = AgentTails(root, None, clock)
    try:
        with pytest.raises(Unavailable):
            tails.files(NODE)
    finally:
        tails.close()
        other.close(wait=worker.stop(5))


def test_a_read_is_put_together_from_several_answers(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    clock, randomness = SystemClock(), SystemRandomness()
    root = LocalStore(str(tmp_path / "root"))
    manifest = NodeManifest(address=endpoint, directory="d")
    NodeManifestLog(Context(root, clock=clock, randomness=randomness), NODE).publish(0, manifest)
    data = b"".join(number.to_bytes(4, "big") for number in range(3 * 2**20)) + bytes(5 * 2**20)
    with served(tmp_path, endpoint) as disk:
        disk.create(SEGMENT, data)
        tails = AgentTails(root, None, clock)
        assert tails.read(SEGMENT) == data
        for offset, length in ((0, 1), (2**22 - 1, 2**22 + 2), (len(data) - 3, 100), (2**30, 5)):
            assert tails.read(SEGMENT, offset, length) == data[offset : offset + length]
        with pytest.raises(NotFound):
            tails.read(f"{NODE}/wal/00000003-00000009.wal")
        tails.close()


def test_described_requests_are_those_of_the_protocol() -> None:
    for name in ("wire-tail", "wire-tail-read"):
        described = json.loads((GOLDEN / f"{name}.json").read_text())
        assert msgpack.packb(described["header"]) == golden(name)[0]
