"""Tables that follow their map."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context, open_context
from imap_wal.errors import InvalidSetting
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.following import TableFollower
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.row_engine import RowEngine
from imap_wal.rewrite.run import rewrite
from rewrite_cli.cli import group
from storage_backends import SegmentStore, Unavailable, open_store
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.location import Location
from storage_backends.memory import MemoryStore
from tests.kit.effort import step
from tests.kit.logs import cluster, node
from tests.kit.rewrites import ENGINE
from tests.kit.tables import FOLDER, iceberg_catalog, rows, table, written
from tests.support import FakeClock

_seeds = itertools.count(5000)


def follower(store: SegmentStore, keep: int = 3) -> TableFollower:
    """A follower as in another process: it shares no memory with others."""
    context = Context(store, clock=FakeClock(), randomness=SeededRandomness(next(_seeds)))
    log = ClusterLog(context, "ns", "c")
    return TableFollower(log, {"orders": "delta"}, lambda: ENGINE, keep, lambda _: None)


def test_a_round_publishes_what_has_changed(memory: MemoryStore) -> None:
    log, follows = node(memory), follower(memory)
    following = written(log, 1, a="1", b="2")
    (first,) = follows.round()
    assert (first.version, first.is_new) == (0, True) and rows(memory) == {"a": "1", "b": "2"}
    stored = {file.path for file in memory.list("ns/c")}
    assert follows.round() == [], "nothing has changed"
    assert {file.path for file in memory.list("ns/c")} == stored
    written(log, following, a=None, b="3")
    (second,) = follows.round()
    assert second.version == 1 and rows(memory) == {"b": "3"}


def test_former_files_are_removed_with_their_versions(memory: MemoryStore) -> None:
    """The storage has only the files of the last two versions, even after many rounds."""
    log, follows = node(memory), follower(memory, keep=2)
    request, counts = 1, []
    for number in range(8):
        request = written(log, request, a=str(number))
        follows.round()
        counts.append(len(memory.list(f"{FOLDER}")))
    assert counts[2:] == [counts[2] + number for number in range(6)], "only commits are more"
    assert len([f for f in memory.list(FOLDER) if f.path.endswith(".parquet")]) == 2


def test_a_follower_that_was_killed_continues(memory: MemoryStore) -> None:
    """At any storage operation. Each version of the table is the map at some time."""
    for at in range(1, 200, 1 if step(1) < 4 else 5):
        store = MemoryStore(f"{memory.url}-{at}")
        log = node(store)
        request = written(log, 1, a="1")
        follower(store).round()
        written(log, request, a="2", b="1")
        try:
            follower(FaultyStore(store, Plan((Fault("kill", at),)))).round()
            ended = True
        except Killed:
            ended = False
        assert rows(store) in ({"a": "1"}, {"a": "2", "b": "1"})
        follower(store).round()
        assert rows(store) == {"a": "2", "b": "1"} and table(store).version == 1
        if ended:
            break
    else:
        pytest.fail("a round makes more operations")


def test_a_map_that_is_dropped_leaves_an_empty_table(memory: MemoryStore) -> None:
    """A drop appends nothing to the log."""
    log, follows = node(memory), follower(memory)
    following = written(log, 1, a="1")
    follows.round()
    drop_map(cluster(memory), "orders")
    (dropped,) = follows.round()
    assert (dropped.version, rows(memory)) == (1, {})
    assert follows.round() == []
    written(log, following, b="2")
    assert follows.round()[0].is_new and rows(memory) == {"b": "2"}


@pytest.mark.parametrize("other", ["a former copy", "another log"])
def test_a_log_in_place_of_the_former_is_followed(tmp_path: Path, other: str) -> None:
    """It ends before the place where the former one ended."""
    root, copy = tmp_path / "log", tmp_path / "copy"

    def write(folder: Path, *values: bytes) -> None:
        for value in values:
            with imap_wal.open(folder) as store:
                store.map("orders", raw=True)[b"a"] = value

    write(root, b"1")
    context = open_context(Location(str(root)))
    log = ClusterLog(context, "default", "embedded")
    follows = TableFollower(log, {"orders": "delta"}, LocalEngine, 3, lambda _: None)
    follows.round()
    if other == "another log":
        write(copy, b"5")
    else:
        shutil.copytree(root, copy)
    write(root, b"2", b"3")
    assert follows.round()[0].version == 1
    root.rename(tmp_path / "away")
    copy.rename(root)
    follows.round()
    write(root, b"6")
    assert follows.round()[0].is_new
    assert rows(context.store, "default/embedded/snapshot/orders") == {"a": "6"}
    context.store.close()


def test_a_snapshot_without_parquet_is_published(memory: MemoryStore) -> None:
    """An open store that ends compacts a tiny log so. No later change of the map is needed."""
    log, follows = node(memory), follower(memory)
    following = written(log, 1, a="1")
    rewrite(cluster(memory), RowEngine())
    assert follows.round()[0].is_new and rows(memory) == {"a": "1"}
    written(log, following, b="2")
    rewrite(cluster(memory), RowEngine())
    assert follows.round()[0].is_new and rows(memory) == {"a": "1", "b": "2"}


def test_a_round_after_an_error_does_what_was_left(memory: MemoryStore) -> None:
    """The rewrite was done, and its publication was not."""
    store = FaultyStore(memory, Plan((Fault("error", 2, "create", f"{FOLDER}/_delta_log/*"),)))
    log, follows = node(memory), follower(store)
    request = written(log, 1, a="1")
    follows.round()
    written(log, request, a="2")
    with pytest.raises(Unavailable):
        follows.round()
    assert rows(memory) == {"a": "1"}
    generation = cluster(memory).manifest().generation
    (done,) = follows.round()
    assert done.version == 1 and rows(memory) == {"a": "2"}
    assert cluster(memory).manifest().generation == generation, "nothing was rewritten again"


@pytest.mark.parametrize("kind", ["delta", "iceberg lake.shop.orders"])
def test_a_dropped_table_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A round does not make a table that an earlier round has made. A new start does."""
    catalog = iceberg_catalog(tmp_path, monkeypatch)
    commits = tmp_path / "log" / "default" / "embedded" / "snapshot" / "orders" / "_delta_log"
    with imap_wal.open(tmp_path / "log") as store:
        orders = store.map("orders")
        orders["a"] = 1
        context = open_context(Location(str(tmp_path / "log")))
        log = ClusterLog(context, "default", "embedded")

        def follow() -> TableFollower:
            return TableFollower(log, {"orders": kind}, LocalEngine, 3, lambda _: None)

        follows = follow()
        assert follows.round()[0].is_new
        if kind == "delta":
            shutil.rmtree(commits)
        else:
            catalog.drop_table("shop.orders")
        orders["a"] = 2
        for _ in range(2):
            with pytest.raises(InvalidSetting, match="orders of map 'orders' was dropped: end "):
                follows.round()
        assert not commits.exists() and not catalog.table_exists("shop.orders")
        assert follow().round()[0].is_new
        context.store.close()


def command(root: Path, map: str) -> list[str]:
    words = [sys.executable, "-m", "rewrite_cli.cli", "publish", str(root), "--map", map, "--delta"]
    return [*words, "-o", "json", "--follow", "--interval", "100ms"]


def test_the_command_continues_after_an_error(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with imap_wal.open(root) as store:
        store.map("orders")["a"] = 1
    with subprocess.Popen(
        command(root, "orders"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["version"] == 0
        (root / "default").rename(tmp_path / "away")
        failed = json.loads(process.stdout.readline())
        assert failed["cluster"] == "default/embedded"
        assert "the log in default/embedded is no longer there" in failed["error"]
        assert failed["error"] in process.stderr.readline()
        assert not (root / "default").exists(), "nothing was made in its place"
        (tmp_path / "away").rename(root / "default")
        with imap_wal.open(root) as store:
            store.map("orders")["a"] = 2
        lines = (json.loads(line) for line in process.stdout)
        assert next(line["version"] for line in lines if "version" in line) == 1
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


@pytest.mark.parametrize("other", ["--dry-run", "--each-rewrite", "--by-hand"])
def test_following_excludes_other_options(tmp_path: Path, other: str) -> None:
    words = ["publish", str(tmp_path), "--map", "m", "--delta", "--follow", other]
    ended = CliRunner().invoke(group, words)
    assert ended.exit_code == 2 and "--follow excludes" in ended.output


WRITER = """
import itertools, sys
import imap_wal

with imap_wal.open(sys.argv[1]) as store:
    numbers = store.map("numbers", raw=True)
    for number in itertools.count():
        numbers[b"k%d" % (number % 50)] = b"%d" % number
        numbers[b"last"] = b"%d" % number
        if not number:
            print("written", flush=True)
"""


def _numbers(store: SegmentStore) -> dict[str, int]:
    found = rows(store, "default/embedded/snapshot/numbers")
    return {key: int(value) for key, value in found.items()}


def test_a_killed_command_and_a_killed_writer_lose_nothing(tmp_path: Path, seed: int) -> None:
    """The real command beside a real writer. Each version is the map at one moment."""
    root, chance = tmp_path / "log", Random(seed)
    follow = command(root, "numbers")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, root], stdout=subprocess.PIPE)
    versions: list[int] = []
    try:
        assert writer.stdout is not None and writer.stdout.readline()
        store = open_store(str(root))
        for _ in range(3):
            with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                lines = itertools.islice(process.stdout, 2)
                versions += [json.loads(line)["version"] for line in lines]
                time.sleep(chance.random() / 2)
                process.kill()
            found = _numbers(store)
            last = found.pop("last")
            assert all(last - 50 <= number <= last + 1 for number in found.values())
        writer.kill()
        writer.wait()
    finally:
        writer.kill()
    assert versions == sorted({*versions}), "each version was made once"
    with imap_wal.open(root, read_only=True) as there:
        expected = {k.decode(): int(v) for k, v in there.map("numbers", raw=True).items()}
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert _numbers(store) == expected
