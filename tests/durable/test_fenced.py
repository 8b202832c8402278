"""The errors of a writer that another process fenced: which process did it, and which outcomes
are certain."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.context import Context
from imap_wal.errors import Fenced, ImapWalError, OutcomeUnknown
from imap_wal.read.cluster import ClusterLog
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.kit.effort import every

URLS = ["file://{}/maps", "objects+file://{}/maps"]


def changes(m: Any) -> list[Callable[[], Any]]:
    return [
        lambda: m.put("new", 1),
        lambda: m.update({"new": 1}),
        lambda: m.pop("a"),
        m.popitem,
        m.clear,
        lambda: m.setdefault("new", 1),
    ]


@every(3)
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("takeover", [True, False])
def test_every_error_of_a_replaced_writer_names_its_successor(
    tmp_path: Path, url: str, takeover: bool
) -> None:
    url = url.format(tmp_path)
    old = imap_wal.open(url)
    m = old.map("m")
    m["a"] = 1
    other: dict[str, Any] = {"takeover": True} if takeover else {"node": "other", "takeover": True}
    with imap_wal.open(url, **other) as new:
        new.map("m")["b"] = 2
        with pytest.raises(OutcomeUnknown) as first:
            m["a"] = 2
        assert isinstance(first.value.__cause__, Fenced)
        named = f"process {os.getpid()} on "
        assert named in first.value.__cause__.holder
        assert named in str(first.value)
        for change in [*changes(m), old.sync]:
            with pytest.raises(Fenced, match="close this one") as refused:
                change()
            assert named in str(refused.value)
            assert ("shared=True" in str(refused.value)) is not takeover
            assert ("'other'" in str(refused.value)) is not takeover
        old.close()
    with imap_wal.open(url, **{**other, "takeover": False}) as new:
        assert new.map("m")["b"] == 2
        assert "new" not in new.map("m")


def test_a_successor_that_has_ended_is_not_named(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path) as old:
        m = old.map("m")
        m["a"] = 1
        imap_wal.open(tmp_path, takeover=True).close()
        with pytest.raises(
            OutcomeUnknown, match="was taken over by another process; close this one"
        ):
            m["a"] = 2
        with pytest.raises(Fenced):
            m["a"] = 2


def test_an_asyncio_store_and_a_log_raise_the_same_errors(tmp_path: Path) -> None:
    async def work() -> None:
        async with imap_wal.aopen(tmp_path / "maps") as store:
            m = store.map("m")
            await m.set("a", 1)
            with imap_wal.open(tmp_path / "maps", takeover=True):
                with pytest.raises(OutcomeUnknown, match=f"process {os.getpid()}"):
                    await m.set("a", 2)
                for change in (
                    lambda: m.set("a", 2),
                    lambda: m.pop("a"),
                    lambda: m.update({"a": 3}),
                ):
                    with pytest.raises(Fenced, match=f"process {os.getpid()}"):
                        await change()

    asyncio.run(work())
    with imap_wal.log.create(tmp_path / "log") as old:
        old.append("m", (b"k", b"v"))
        with imap_wal.log.open(tmp_path / "log", takeover=True):
            with pytest.raises(OutcomeUnknown):
                old.append("m", (b"k", b"v"))
            with pytest.raises(Fenced, match=r"imap_wal\.log\.open"):
                old.append("m", (b"k", b"v"))


@every(3)
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("opened_again", [False, True])
def test_forgotten_nodes_writer_gets_a_clear_error(
    tmp_path: Path, url: str, opened_again: bool
) -> None:
    """The error says that the node was forgotten, and names no other node. It used to name an
    unrelated node, and advised `shared=True`."""
    url = url.format(tmp_path)
    old = imap_wal.open(url, node="n1", shared=True)
    with imap_wal.open(url, node="bystander", shared=True) as bystander:
        bystander.map("m")["b"] = 1
        old.map("m")["a"] = 1
        store = open_store(url)
        forget_node(ClusterLog(Context(store), "default", "embedded"), "n1", lose=True)
        if opened_again:
            imap_wal.open(url, node="n1", shared=True).close()
        for _ in range(2):
            with pytest.raises(
                (OutcomeUnknown, Fenced),
                match=r"node 'n1' was forgotten .*an open under this node name begins a new log",
            ) as refused:
                old.map("m")["a"] = 2
            assert "bystander" not in str(refused.value) and "shared=True" not in str(refused.value)
        store.close()
        old.close()


def test_a_change_that_was_certainly_not_written_gets_fenced(memory: MemoryStore) -> None:
    """A change that would begin a segment: the manifest names another writer before anything is
    written."""
    old = imap_wal.open(memory.url, storage=memory, preallocate=False)
    m = old.map("m")
    with imap_wal.open(memory.url, storage=memory, preallocate=False, takeover=True) as new:
        with pytest.raises(Fenced, match="was taken over by"):
            m["a"] = 1
        assert dict(new.map("m")) == {}
    old.close()


def test_a_forked_child_is_fenced_at_its_first_change(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path) as store:
        m = store.map("m")
        m["a"] = 1
        pid = os.fork()
        if not pid:
            code = 1
            try:
                m["a"] = 2
            except Fenced as error:
                code = 0 if "forked child" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        m["a"] = 3
    with imap_wal.open(tmp_path) as store:
        assert store.map("m")["a"] == 3


def test_forked_child_neither_locks_nor_writes_the_log(url: str) -> None:
    store = imap_wal.open(url, node="n")
    store.map("m")["parent"] = 1
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"wrote"
        try:
            store.map("m")["child"] = 1
        except ImapWalError as error:
            answer = type(error).__name__.encode()
        except BaseException as error:
            answer = repr(error).encode()
        os.write(write, answer)
        signal.pause()
        os._exit(0)
    os.close(write)
    try:
        assert os.read(read, 1000) == b"Fenced"
        store.map("m")["after"] = 2
        store.close()
        with imap_wal.open(url, node="n") as again:
            assert dict(again.map("m").items()) == {"parent": 1, "after": 2}
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
