"""A node's disk is lost. Its last changes have copies in another log; its earlier ones are only in
what it uploaded: every reader has both."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from imap_wal.context import Context
from imap_wal.embedded.wal_filter import filtered
from imap_wal.format import Position
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.placement import open_store
from imap_wal.read.cluster import ClusterLog
from imap_wal.settings import RecoveryPolicy
from pyspark_imap_wal.batch import ImapWalReader
from pyspark_imap_wal.changes.batch import ImagesReader
from pyspark_imap_wal.changes.history import HistoryReader
from pyspark_imap_wal.options import Options
from pyspark_imap_wal.stream import ImapWalStreamReader
from rewrite_cli.commands.reading.tail import LineFollower
from tests.agent.harness import Plugin, plugin, serving
from tests.kit.agents import Process
from tests.kit.own_disks import own_disk_config

pytestmark = pytest.mark.spark

BOTH = {b"old", b"new"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`old` is in the log of n1 only, which uploaded it. `new` is also in the log of n2, and n1 did
    not upload it."""
    folder = tmp_path_factory.mktemp("lost")
    first, second = (own_disk_config(folder, node) for node in ("n1", "n2"))
    with serving(first), plugin(first) as member:
        member.put(old="1")
    process = Process(first)
    with serving(second):
        copies = [Plugin(each.endpoint, uuid="plugin-2") for each in (second, first)]
        for each in copies:
            each.hello(shared=True, acks=2)
            each.put(new="2")
        copies[0].client.ask("bye")
        process.end(signal.SIGKILL)
        for each in copies:
            each.close()
    shutil.rmtree(folder / "disk-n1")
    return first.url


@pytest.fixture
def log(root: str) -> Iterator[ClusterLog]:
    with closing(open_store(root)) as store:
        found = ClusterLog(Context(store), "default", "c")
        state = found.state()
        assert list(state.missing) == ["n1"]
        assert not state.lacking
        yield found


def keys(reader: Any, tasks: Any) -> set[bytes]:
    return {
        line["key"] for task in tasks for part in reader.read(task) for line in part.to_pylist()
    }


@contextmanager
def streaming(root: str, **options: str) -> Iterator[ImapWalStreamReader]:
    chosen = Options.parse({"path": root, **options})
    stream = ImapWalStreamReader(chosen, chosen.kinds())
    try:
        yield stream
    finally:
        stream.stop()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ImapWalReader, {"mode": "raw"}),
        (ImapWalReader, {"mode": "latest"}),
        (ImagesReader, {"changes": "images", "buckets": "1"}),
        (HistoryReader, {"table": "history"}),
    ],
)
def test_a_batch_has_what_was_uploaded(
    root: str, log: ClusterLog, kind: Any, options: dict[str, str]
) -> None:
    chosen = Options.parse({"path": root, **options})
    reader = kind(chosen, chosen.kinds())
    assert keys(reader, reader.partitions()) == BOTH


def test_a_stream_has_what_was_uploaded(root: str, log: ClusterLog) -> None:
    with streaming(root) as stream:
        start = stream.initialOffset()
        assert keys(stream, stream.partitions(start, stream.latestOffset(start))) == BOTH


def test_a_stream_of_new_changes_begins_after_what_was_uploaded(root: str, log: ClusterLog) -> None:
    """Otherwise, the node's whole log is new when it comes back."""
    with streaming(root, starting="latest") as stream:
        end = stream.latestOffset(stream.initialOffset())
        assert sorted(end["nodes"]) == ["n1", "n2"]


def test_a_part_ends_where_its_upload_does(log: ClusterLog) -> None:
    """Also if its manifest knows a checkpoint after that: the node may come back with the rest."""
    state = log.state().demand(RecoveryPolicy.FULL)
    before = log.ends(state=state)
    assert sorted(before) == ["n1", "n2"]
    newest = log.node("n1").manifest.newest
    manifests = NodeManifestLog(log.context, log.node_folder("n1"))
    known = manifests.read()[1].checkpoint
    try:
        later = Position(2, newest, 1, 0)
        manifests.update(lambda manifest: replace(manifest, checkpoint=later))
        assert log.node("n1").manifest.checkpoint == later
        assert log.ends(state=state) == before
    finally:
        manifests.update(lambda manifest: replace(manifest, checkpoint=known))


def test_a_filter_and_a_follower_have_what_was_uploaded(log: ClusterLog) -> None:
    assert set(filtered(log, lambda entry: entry, RecoveryPolicy.FULL)["orders"]) == BOTH
    shown = {line.row[1] for line in LineFollower(log, (), ()).last(10)}
    assert shown == BOTH


def test_a_table_of_spark_has_what_was_uploaded(spark: Any, root: str, log: ClusterLog) -> None:
    table = spark.read.format("imap_wal").option("mode", "latest").load(root)
    assert {bytes(row["key"]) for row in table.collect()} == BOTH
