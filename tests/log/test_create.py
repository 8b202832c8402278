"""A log that is used by itself is created once, opened from then on, and kept apart from maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal import log
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.errors import (
    InvalidSetting,
    LogExists,
    NoSuchLog,
    StorageUnavailable,
    WriterLocked,
)
from imap_wal.log import LogReader
from imap_wal.manifest.claims import claim_manifests
from imap_wal.read.cluster import ClusterLog
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.standalone import create, fill, reading, reopen, texts_of
from tests.support import FakeClock, Threads, embedded


def test_a_log_is_created_once_and_opened_from_then_on(url: str) -> None:
    with pytest.raises(NoSuchLog, match=r"create it with imap_wal\.log\.create"):
        log.open(url)
    with log.create(url) as opened:
        fill(opened, 1)
    with pytest.raises(LogExists, match="open it, or choose another name"):
        log.create(url)
    with log.create(url, exist_ok=True) as opened:
        fill(opened, 2)
    with log.open(url) as opened:
        fill(opened, 3)
        assert texts_of(opened.read()) == ["1", "2", "3"]


def test_created_but_unopened_log_can_be_opened(
    memory: MemoryStore,
) -> None:
    """The process died between the creation and the open."""
    faulty = FaultyStore(memory, Plan((Fault("error", kind="lock"),)))
    with pytest.raises(StorageUnavailable):
        create(faulty)
    assert list(reading(memory).read()) == []
    with reopen(memory) as opened:
        fill(opened, 1)


def test_one_of_many_concurrent_creators_makes_the_log(url: str) -> None:
    """The others get `LogExists` or `WriterLocked`."""
    outcomes: list[str] = []

    def work() -> None:
        try:
            log.create(url).close()
            outcomes.append("made")
        except (LogExists, WriterLocked) as error:
            outcomes.append(type(error).__name__)

    Threads(*[work] * 6).join()
    assert outcomes.count("made") == 1 and len(outcomes) == 6


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_appended_entries_survive_a_reopen_with_any_durability(url: str, durability: Any) -> None:
    """Their positions do not change."""
    with log.create(url, durability=durability) as opened:
        places = fill(opened, *range(10))
        opened.sync()
    assert [record.position for record in LogReader(url).read()] == places


def test_durability_that_storage_cannot_keep_is_refused(
    tmp_path: Path,
) -> None:
    """Nothing is created."""
    with pytest.raises(
        InvalidSetting, match="positions, which are known only once they are written"
    ):
        log.create(f"file://{tmp_path}/log", durability="async")
    with pytest.raises(InvalidSetting, match="manual_wal_flush"):
        log.create(f"file://{tmp_path}/log", manual_wal_flush=True)
    with pytest.raises(InvalidSetting, match="before any reader can see it"):
        log.create(f"objects+file://{tmp_path}/log", durability="interval")
    with pytest.raises(InvalidSetting, match="there is no setting"):
        log.create(f"file://{tmp_path}/log", segment_size=1)  # type: ignore[call-arg]
    assert not (tmp_path / "log").exists()


def test_logs_and_maps_refuse_each_others_folders(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m")["a"] = 1
    with pytest.raises(InvalidSetting, match=r"is the log of maps.*LogReader"):
        reopen(memory, cluster="embedded", node="n1")
    with pytest.raises(InvalidSetting, match="choose another cluster name"):
        create(memory, cluster="embedded")
    with pytest.raises(InvalidSetting, match="is the log of maps"):
        create(memory, cluster="embedded", node="n1")
    with embedded(memory) as store:
        assert store.map("m")["a"] == 1
    create(memory, node="first").close()
    create(memory, node="second").close()


def test_a_log_is_refused_among_hazelcast_members(memory: MemoryStore) -> None:
    cluster = ClusterLog(
        Context(memory, clock=FakeClock(), randomness=SeededRandomness(1)), "default", "log"
    )
    cluster.manifests.update(lambda manifest: type(manifest)(incarnation=1))
    claims = claim_manifests(
        Context(memory, clock=FakeClock(), randomness=SeededRandomness(1)), cluster.folder
    )
    claims.update(lambda now: now.with_claim("a cluster id", 1))
    with pytest.raises(InvalidSetting, match="choose another cluster name"):
        create(memory)


def test_logs_sharing_a_cluster_have_newest_map_values(memory: MemoryStore) -> None:
    """A store that reads both has the newest value of each key."""
    with create(memory, node="a") as first, create(memory, node="b") as second:
        first.append("m", (b"k", b"1"), (b"only", b"a"))
        second.append("m", (b"k", b"2"))
    with imap_wal.open(
        memory.url, cluster="log", node="view", storage=memory, preallocate=False
    ) as store:
        assert dict(store.map("m", raw=True).items()) == {b"k": b"2", b"only": b"a"}
    with reopen(memory, node="a") as first:
        first.append("m", (b"k", b"3"))
    with imap_wal.open(
        memory.url, cluster="log", node="view", storage=memory, preallocate=False
    ) as store:
        assert store.map("m", raw=True)[b"k"] == b"3"
    with pytest.raises(InvalidSetting, match="choose another cluster name"):
        create(memory, node="c")
    create(memory, node="a", exist_ok=True).close()


def test_segments_may_have_a_storage_of_their_own(tmp_path: Path, url: str) -> None:
    with log.create(url, wal_dir=f"file://{tmp_path}/quick") as opened:
        places = fill(opened, 1, 2)
        assert list((tmp_path / "quick").rglob("*.wal"))
        assert [record.position for record in LogReader(url).read()] == places
        opened.archive()
        assert [record.position for record in LogReader(url).read()] == places
