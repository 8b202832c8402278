"""The log of one node has one writer: others are refused, or fenced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.errors import Fenced, OutcomeUnknown, WriterLocked
from imap_wal.write import opening
from imap_wal.write.object_segment import shut_out
from rewrite_cli.cli import group
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.writers import manifest, write
from tests.support import IDENTITY, contents, embedded, node_log


def test_second_process_is_refused_and_the_holder_named(
    url: str,
) -> None:
    """At once; the first writer continues."""
    with imap_wal.open(url, node="n1") as first:
        first.map("m")["a"] = 1
        code = (
            f"import imap_wal\ntry:\n    imap_wal.open({url!r}, node='n1')\nexcept "
            "imap_wal.WriterLocked as e:\n    print(e.node, '|', e.holder, '|', e)"
        )
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        node, holder, text = answer.strip().split(" | ")
        assert node == "n1"
        assert f"process {os.getpid()}" in holder
        assert "imap_wal.open" in holder
        assert "takeover=True" in text
        first.map("m")["b"] = 2
    with imap_wal.open(url, node="n1") as again:
        assert dict(again.map("m").items()) == {"a": 1, "b": 2}


def test_node_that_shares_the_cluster_is_admitted(url: str) -> None:
    """It was opened with the setting to share the cluster."""
    with imap_wal.open(url, node="n1") as one, imap_wal.open(url, node="n2", shared=True) as two:
        one.map("m")["a"] = 1
        two.map("m")["b"] = 2
    with imap_wal.open(url, node="n1") as again:
        assert dict(again.map("m").items()) == {"a": 1, "b": 2}


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_replaced_writer_acknowledges_and_loses_nothing(
    tmp_path: Path, memory: MemoryStore, durability: str, kind: str
) -> None:
    """A takeover replaced it. The changes that it had acknowledged are kept."""
    store = memory if kind == "memory" else LocalStore(str(tmp_path))
    first = embedded(store, durability=durability)
    old = first.map("m")
    old.update({"acked": 1, "both": "old"})
    second = embedded(store, takeover=True)
    second.map("m")["both"] = "new"
    with pytest.raises(OutcomeUnknown, match="was taken over by"):
        old["zombie"] = 1
    with pytest.raises(Fenced):
        old["zombie"] = 2
    assert "zombie" not in old
    second.map("m")["later"] = 1
    expected = {"acked": 1, "both": "new", "later": 1}
    assert dict(second.map("m").items()) == expected
    second.close()
    first.close()
    assert contents(store) == expected
    with embedded(store) as third:
        assert dict(third.map("m").items()) == expected


def test_stale_writer_cannot_harm_the_log_after_takeovers(
    memory: MemoryStore,
) -> None:
    """It sleeps during several takeovers, and then rotates."""
    first = embedded(memory, segment_bytes=300, durability="os")
    first.map("m").update({"acked": 1})
    for epoch in range(3):
        with embedded(memory, takeover=True) as other:
            other.map("m")[f"epoch{epoch}"] = 1
    for attempt in range(3):
        with pytest.raises((OutcomeUnknown, Fenced)):
            first.map("m")[f"zombie{attempt}"] = "x" * 400
    first.close()
    assert contents(memory) == {"acked": 1, "epoch0": 1, "epoch1": 1, "epoch2": 1}


def test_takeover_without_append_occupies_the_next_name(tmp_path: Path) -> None:
    """The storage cannot append: the fence is an object with the name of the next commit."""
    clock = [0]
    store = LocalObjects(str(tmp_path), clock_ms=lambda: clock[0])
    first = embedded(store)
    first.map("m")["a"] = 1
    clock[0] += 10_000_000
    second = embedded(LocalObjects(str(tmp_path), clock_ms=lambda: clock[0]), takeover=True)
    with pytest.raises(OutcomeUnknown):
        first.map("m")["zombie"] = 1
    second.map("m")["b"] = 2
    assert dict(second.map("m").items()) == {"a": 1, "b": 2}
    second.close()
    with embedded(LocalObjects(str(tmp_path), clock_ms=lambda: clock[0])) as third:
        assert dict(third.map("m").items()) == {"a": 1, "b": 2}


@pytest.mark.parametrize("gone", ["archived", "rewritten and pruned"])
def test_replaced_object_writer_acknowledges_nothing(tmp_path: Path, gone: str) -> None:
    """Also after its successor has archived or pruned the log."""
    clock = [0]

    def objects() -> LocalObjects:
        return LocalObjects(str(tmp_path), clock_ms=lambda: clock[0])

    first = embedded(objects())
    first.map("m")["a"] = 1
    second = embedded(objects(), takeover=True)
    second.map("m")["b"] = 2
    if gone == "archived":
        second.archive()
    else:
        for words in (
            ["rewrite", f"objects+file://{tmp_path}"],
            ["prune", f"objects+file://{tmp_path}", "--yes"],
        ):
            assert CliRunner().invoke(group, words).exit_code == 0
    for number in range(3):
        with pytest.raises((OutcomeUnknown, Fenced)):
            first.map("m")[f"zombie{number}"] = 1
    second.map("m")["c"] = 3
    second.archive()
    second.close()
    with embedded(objects()) as third:
        assert dict(third.map("m").items()) == {"a": 1, "b": 2, "c": 3}


def test_commit_before_an_object_takeover_is_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is just before the fence; the log opens."""

    def objects() -> LocalObjects:
        return LocalObjects(str(tmp_path), clock_ms=lambda: 0)

    first = embedded(objects())
    first.map("m").update({"a": 1})
    real = shut_out

    def late(*arguments: Any) -> None:
        first.map("m")["late"] = 1
        real(*arguments)
        with pytest.raises(OutcomeUnknown):
            first.map("m")["too late"] = 1

    monkeypatch.setattr(opening, "shut_out", late)
    second = embedded(objects(), takeover=True)
    monkeypatch.undo()
    assert dict(second.map("m").items()) == {"a": 1, "late": 1}
    second.map("m")["b"] = 2
    with embedded(objects(), takeover=True) as third:  # the second was killed
        assert dict(third.map("m").items()) == {"a": 1, "late": 1, "b": 2}


def test_aborted_object_takeovers_leave_one_fence_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takeovers end half way; the fences are kept."""

    def objects() -> LocalObjects:
        return LocalObjects(str(tmp_path), clock_ms=lambda: 0)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    first = embedded(objects())
    first.map("m")["a"] = 1
    monkeypatch.setattr("imap_wal.write.recovery.Recovery.run", die)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            embedded(objects(), takeover=True)
    monkeypatch.undo()
    names = sorted(path.name for path in tmp_path.rglob("*.wal"))
    assert names == ["00000001-00000001.wal", "00000001-00000002.wal"]
    for number in range(3):
        with embedded(objects(), takeover=True) as store:
            store.map("m")[f"b{number}"] = number
            store.archive()
    assert (tmp_path / IDENTITY.node_folder / "wal/00000001-00000002.wal").exists()
    with pytest.raises((OutcomeUnknown, Fenced)):
        first.map("m")["zombie"] = 1
    with embedded(objects()) as store:
        assert dict(store.map("m").items()) == {"a": 1, "b0": 0, "b1": 1, "b2": 2}


def test_replaced_writer_does_not_mark_the_log_clean(
    memory: MemoryStore,
) -> None:
    """When it closes, the log belongs to its successor."""
    first = node_log(memory)
    write(first, 1)
    second = node_log(memory, takeover=True)
    with pytest.raises(Fenced):
        first.close()
    assert not manifest(memory).clean
    assert manifest(memory).epoch == second.epoch == 2


def test_session_of_a_replaced_writer_is_refused(memory: MemoryStore) -> None:
    first = node_log(memory)
    node_log(memory, takeover=True)
    with pytest.raises(Fenced):
        first.new_session("plug-in")


def test_a_locked_log_stays_locked_when_the_second_open_fails(memory: MemoryStore) -> None:
    first = node_log(memory)
    for _ in range(2):
        with pytest.raises(WriterLocked):
            node_log(memory)
    write(first, 1)
    first.close()
    node_log(memory).close()
