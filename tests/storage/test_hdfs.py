"""Real HDFS: a name node and a data node of Hadoop 3.4.1 in one JVM, over WebHDFS."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import imap_wal
from imap_wal.disposal import sweep
from imap_wal.errors import ImapWalError
from storage_backends import AlreadyExists, StorageError, Unavailable, open_store
from storage_backends.hdfs import HdfsStore
from storage_backends.testing import check_segment_store
from tests.cluster.processes import QUICK_JVM
from tests.kit.ports import free_port
from tests.storage.services import BUILD, need, running

# The first run fetches some 150 MB of jars; truncation waits for the data node.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    java = need("java", "the storage tests run HDFS in it (Java 17)")
    jars = BUILD / "hdfs"
    if not list(jars.glob("hadoop-client-minicluster*.jar")):
        maven = need("mvn", "the storage tests fetch HDFS through Maven")
        command = [
            maven,
            "-q",
            "-B",
            "-f",
            str(Path(__file__).parent / "hdfs" / "pom.xml"),
            "dependency:copy-dependencies",
        ]
        fetched = subprocess.run(
            [*command, f"-DoutputDirectory={jars}"], capture_output=True, text=True, check=False
        )
        if fetched.returncode:
            pytest.fail(
                f"fetching HDFS: {fetched.stdout[-2000:]}{fetched.stderr[-2000:]}", pytrace=False
            )
    folder = tmp_path_factory.mktemp("hdfs")
    port = free_port()
    manager = [
        java,
        *QUICK_JVM,
        "-Xmx512m",
        "-cp",
        f"{jars}/*",
        f"-Dtest.build.data={folder}/data",
        "org.apache.hadoop.test.MiniDFSClusterManager",
    ]
    options = [
        "-format",
        "-datanodes",
        "1",
        "-nnport",
        str(free_port()),
        "-httpport",
        str(port),
        "-writeDetails",
        f"{folder}/ready",
    ]
    with running([*manager, *options], port, folder / "log", seconds=120, ready=folder / "ready"):
        # The user that started the cluster owns its root: only it may create folders of others.
        named = subprocess.run(["whoami"], check=True, capture_output=True, text=True)
        yield f"webhdfs://{named.stdout.strip()}@localhost:{port}/maps"


@pytest.mark.storage
def test_hdfs_keeps_every_promise(url: str) -> None:
    check_segment_store(open_store(url), reopen=lambda: open_store(url))


@pytest.mark.storage
def test_hdfs_declares_its_capabilities(url: str) -> None:
    store = open_store(url)
    assert store.capabilities.durable_append
    assert not store.capabilities.durable_sync, "WebHDFS has no hsync"
    assert open_store(f"{url}?sync_on_close=true").capabilities.durable_sync
    assert "@" not in store.url


@pytest.mark.storage
def test_hdfs_url_speaks_to_the_http_port(url: str) -> None:
    user, _, rest = url.removeprefix("webhdfs://").partition("@")
    port = rest.partition("/")[0].partition(":")[2]
    store = open_store(f"hdfs://localhost:8020/maps?http_port={port}&user={user}")
    store.create("by-hdfs-url", b"x")
    assert open_store(url).read("by-hdfs-url") == b"x"


@pytest.mark.storage
def test_appender_whose_append_failed_is_not_used_again(url: str) -> None:
    store = open_store(url)
    appender = store.open_append("failed.wal")
    appender.append(b"one")
    store.delete("failed.wal")
    with pytest.raises(StorageError):
        appender.append(b"two")
    store.create("failed.wal", b"")
    with pytest.raises(Unavailable, match="an earlier append failed"):
        appender.append(b"two")
    assert appender.size == 3


@pytest.mark.storage
def test_missing_rights_of_a_user_are_reported(url: str) -> None:
    store = open_store(
        url.replace(url.removeprefix("webhdfs://").partition("@")[0], "nobody-at-all")
    )
    with pytest.raises(Unavailable, match=r"refused.*check the user"):
        store.create("forbidden", b"")


@pytest.mark.storage
def test_file_left_by_a_dead_writer_is_hidden(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, HdfsStore)
    store._send("PUT", "CREATE", "left/.#tmp-0123", b"half", overwrite="false")
    store.create("left/1", b"")
    assert [file.path for file in store.list("left")] == ["left/1"]
    with pytest.raises(AlreadyExists):
        store.create("left/1", b"")


@pytest.mark.parametrize("tail", [pytest.param("whole", marks=pytest.mark.storage), "torn"])
def test_a_late_append_misses_the_recovered_segment(url: str, tail: str) -> None:
    """The writer was replaced.
    C8: the append reached the recovered copy, which had the name that the old writer appends to.
    The next open then failed with ShortLog."""
    root = f"{url}-{tail}?sync_on_close=true"

    def opened(takeover: bool = False) -> imap_wal.Store:
        return imap_wal.open(root, node="n1", takeover=takeover, preallocate=False)

    store = open_store(root)
    assert isinstance(store, HdfsStore)
    old = opened()
    old.map("m")["a"] = 1
    (path,) = [file.path for file in store.list("") if file.path.endswith(".wal")]
    if tail == "torn":
        store.append(path, b"\x40\x00\x00\x00 half a frame")
    new = opened(takeover=True)
    new.map("m")["b"] = 2
    with pytest.raises(ImapWalError):
        old.map("m")["late"] = 3
    with contextlib.suppress(StorageError):  # like a request that was delayed
        store.append(path, b"bytes of a replaced writer")
    new.map("m")["c"] = 4
    new.close()
    with contextlib.suppress(ImapWalError):
        old.close()
    for _ in range(2):
        with opened() as again:
            assert dict(again.map("m")) == {"a": 1, "b": 2, "c": 4}


@pytest.mark.storage
def test_a_name_node_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        open_store(f"webhdfs://localhost:{free_port()}/x").exists("1")


KILLED = """
import os, signal, sys
from storage_backends import open_store

store = open_store(sys.argv[1])
ask = store._ask

def killed(method, operation, *rest, **more):
    if operation == "RENAME":
        os.kill(os.getpid(), signal.SIGKILL)
    return ask(method, operation, *rest, **more)

store._ask = killed
store.create(sys.argv[2], b"never seen")
"""


@pytest.mark.storage
def test_files_of_killed_processes_go_after_a_day(url: str) -> None:
    """Before the first write of another process into that folder, and by a sweep of the folders
    above. A younger one may belong to a process that still writes."""
    store = open_store(url)
    assert isinstance(store, HdfsStore)

    def left(folder: str) -> list[str]:
        return [each["pathSuffix"] for each in store._statuses(f"{folder}/")]

    def leave(folder: str, hours: float) -> str:
        known = left(folder)
        ended = subprocess.run([sys.executable, "-c", KILLED, url, f"{folder}/new"], check=False)
        assert ended.returncode == -signal.SIGKILL
        (name,) = set(left(folder)) - set(known)
        written_ms = int((time.time() - hours * 3600) * 1000)
        times = {"modificationtime": written_ms, "accesstime": -1}
        store._ask("PUT", "SETTIMES", f"{folder}/{name}", **times)
        return name

    for folder in ("killed/a", "killed/deep/b"):
        leave(folder, hours=25)
    young = leave("killed/a", hours=23)
    assert store.list("killed") == []
    store.create("killed/a/new", b"x")
    assert set(left("killed/a")) == {young, "new"}
    sweep(store, "killed")
    assert set(left("killed/a")) == {young, "new"}
    assert left("killed/deep/b") == []
    assert store.folders("killed") == ["a"]
