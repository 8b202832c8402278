"""What counts as a loss of a node with copies: after it, a second lost disk stops a restore with
recovery_policy full, because the changes that had copies on both may be gone."""

from __future__ import annotations

import importlib
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from imap_wal.agent.config import AgentConfig
from imap_wal.context import open_context
from imap_wal.errors import MissingNode
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.cli import group
from storage_backends import Unavailable
from tests.agent.harness import Plugin, plugin, serving
from tests.kit.agents import Process
from tests.kit.own_disks import own_disk_config
from tests.support import eventually


class Pair:
    """Two agents with own disks, in their own processes, and a plug-in that appends to both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = ClusterLog(open_context(f"file://{folder}/root"), "default", "c")
        self.processes = {node: Process(self.config(node)) for node in ("n1", "n2")}
        self.plugins = ExitStack()

    def config(self, node: str, **log: Any) -> AgentConfig:
        return own_disk_config(self.folder, node, tail_timeout_s=1, **log)

    def greeted(self, node: str) -> Plugin:
        member = Plugin(self.config(node).endpoint, uuid="plugin", member="m1")
        self.plugins.callback(member.close)
        member.hello(shared=True, acks=2)
        return member

    def put(self, *values: str) -> None:
        """Changes of one key that both agents acknowledge."""
        for node in ("n2", "n1"):
            member = self.greeted(node)
            for value in values:
                assert member.put(k=value)[0] == "ack"

    def kill(self, *nodes: str) -> None:
        for node in nodes:
            self.processes[node].end(signal.SIGKILL)

    def lose(self, node: str) -> None:
        shutil.rmtree(self.folder / f"disk-{node}")

    def start(self, node: str, **log: Any) -> None:
        self.processes[node] = Process(self.config(node, **log))

    def restored(self) -> str | None:
        """The value that a new cluster gets, with recovery_policy full; None: it is refused."""
        with plugin(self.config("n2"), cluster_id="cluster-9", uuid="plugin-9") as member:
            header, _ = member.client.ask("keys", "orders", None, 100)
            if header[0] == "error":
                assert "MissingNode" in header[3], header
                return None
            return member.values().get("k", "")

    def end(self) -> None:
        self.plugins.close()
        for process in self.processes.values():
            if process.process.is_alive():
                process.end(signal.SIGKILL)


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    made = Pair(tmp_path)
    try:
        yield made
    finally:
        made.end()


def damage(pair: Pair, text: bytes) -> None:
    (file,) = (pair.folder / "disk-n2").rglob("*.wal")
    data = bytearray(file.read_bytes())
    data[data.rindex(text)] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("mode", "after"), [("torn-tail", ()), ("point-in-time", ("later", "last"))]
)
def test_what_a_recovery_cuts_is_a_loss(pair: Pair, mode: str, after: tuple[str, ...]) -> None:
    pair.put("first", "precious", *after)
    pair.kill("n1", "n2")
    damage(pair, b"precious")
    pair.start("n2", recovery_mode=mode)
    assert pair.log.manifest().losses == {"n2": 1}
    pair.lose("n1")
    assert pair.restored() is None


def test_a_recovery_that_cuts_nothing_is_no_loss(pair: Pair) -> None:
    pair.put("precious")
    pair.kill("n1", "n2")
    pair.lose("n1")
    pair.start("n2")
    assert pair.restored() == "precious"


def test_another_log_under_the_name_is_a_loss(pair: Pair) -> None:
    pair.put("precious")
    pair.kill("n1", "n2")
    pair.lose("n2")
    shutil.rmtree(pair.folder / "root/default/c/nodes/n2")
    pair.start("n2", recovery_policy="partial")
    assert pair.processes["n2"].end(signal.SIGTERM) == 0
    pair.lose("n1")
    pair.start("n2")
    assert pair.restored() is None


def acknowledged_before_a_loss(pair: Pair) -> Plugin:
    """n2 acknowledges, and loses its disk; then n1, which was slow, begins a segment with it.
    Returns the plug-in of n1."""
    second, first = pair.greeted("n2"), pair.greeted("n1")
    for each in (second, first):
        each.put(x="0" * 70_000)  # the segment is full
    assert second.put(k="precious")[0] == "ack"
    pair.kill("n2")
    pair.lose("n2")
    pair.start("n2")
    assert first.put(k="precious")[0] == "ack"
    assert pair.log.node("n1").manifest.copied == (2, 1, 0)
    return first


def test_the_next_hello_knows_a_loss(pair: Pair) -> None:
    first = acknowledged_before_a_loss(pair)
    first.hello(shared=True, acks=2)
    first.put(x="0" * 70_000)
    first.put(x="1")
    assert pair.log.node("n1").manifest.copied == (2, 3, 1)


def test_an_acknowledgement_before_a_loss_is_no_copy(pair: Pair) -> None:
    """The segment with it is not sealed, so it is not uploaded."""
    acknowledged_before_a_loss(pair)
    uploaded = pair.folder / "root/default/c/nodes/n1/wal"
    eventually(lambda: list(uploaded.glob("*-00000001.wal")), "an upload")
    pair.kill("n1")
    pair.lose("n1")
    assert pair.restored() is None


def interrupted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open of n1 ends after the id of its new log was created."""
    publish: Callable[..., Any] = ManifestLog.publish

    def fails(self: ManifestLog[Any], *arguments: Any, **options: Any) -> Any:
        if "nodes/n1" in self.folder:
            raise Unavailable("the object store does not answer", self.folder)
        return publish(self, *arguments, **options)

    with monkeypatch.context() as patch, suppress(Unavailable):
        patch.setattr(ManifestLog, "publish", fails)
        with serving(pair.config("n1")):
            raise AssertionError("the agent opened its log")


def test_an_open_on_an_empty_disk_can_be_repeated(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.put("precious")
    pair.kill("n1")
    pair.lose("n1")
    for _ in range(2):
        interrupted(pair, monkeypatch)
    assert list((pair.folder / "disk-n1").rglob("*.log"))
    with serving(pair.config("n1")):
        assert pair.restored() == "precious"
    with serving(pair.config("n1")):
        assert pair.log.node("n1").manifest.given_up[1:] == (1, 1)


def test_a_repeated_open_on_an_empty_disk_needs_copies(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.put("precious")
    pair.kill("n1", "n2")
    pair.lose("n1")
    interrupted(pair, monkeypatch)
    pair.log.manifests.update(lambda manifest: manifest.with_loss("n2"))
    with ExitStack() as stack, pytest.raises(MissingNode, match="on the former disk"):
        stack.enter_context(serving(pair.config("n1")))


def test_a_change_that_was_found_absent_stays_absent(pair: Pair) -> None:
    """Only n1's log has the last change, and no caller got its acknowledgement. A view begins
    without n1."""
    pair.put("settled")
    first, second = pair.greeted("n1"), pair.greeted("n2")
    assert first.put(k="absent")[0] == "ack"
    pair.kill("n1")
    wish = {"cluster_id": "cluster-1", "member_uuid": "m1", "members": ["m1"], "lost": ["m2"]}
    assert second.client.ask("view", wish)[0][0] == "view"
    second.hello(shared=True, acks=2)
    assert second.load("k")["k"][0] == "settled"
    assert pair.log.manifest().losses == {"n1": 1}, "what its disk has is no copy any more"
    pair.start("n1")
    with plugin(pair.config("n1"), cluster_id="cluster-9", uuid="plugin-9") as member:
        assert member.values() == {"k": "settled"}


def test_a_claim_pins_again_if_a_disk_is_lost_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would void the copies of n1, which are needed since n2 lost its own."""
    claims = importlib.import_module("imap_wal.agent.membership.claims")

    pair.put("precious")
    pair.kill("n1", "n2")
    find, seen = claims.find_cutoffs, list[Any]()

    def slow(log: ClusterLog) -> Any:
        seen.append(find(log))
        if len(seen) == 1:
            log.manifests.update(lambda now: now.with_loss("n2"))
        return seen[-1]

    with serving(pair.config("n2")):
        monkeypatch.setattr(claims, "find_cutoffs", slow)
        assert pair.restored() is None
    assert [sorted(each.covered) for each in seen] == [["n1"], []]
    assert pair.log.manifest().losses == {"n2": 1}


def test_losses_are_counted_for_each_node() -> None:
    manifest = ClusterManifest().with_loss("n1", "n2").with_loss("n1")
    assert manifest.losses == {"n1": 2, "n2": 1}
    assert manifest.with_loss() == manifest


def test_a_repaired_copy_has_no_promises(pair: Pair) -> None:
    """A repair keeps what it can read, and promises do not say what that is."""
    pair.put("precious")
    pair.kill("n1", "n2")
    state = pair.log.state()
    assert state.manifest.acks_from("n1", state.parts["n1"].manifest, 1) == 2
    copy = str(pair.folder / "copy")
    done = CliRunner().invoke(group, ["repair", f"{pair.folder}/root", "--to", copy])
    made = ClusterLog(open_context(f"file://{copy}"), "default", "c").manifest()
    assert made.nodes, done.output
    for node, part in state.parts.items():
        assert made.acks_from(node, part.manifest, 1) == 1
