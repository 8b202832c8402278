"""What happens to a log while nobody asks: archives by time and by size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import imap_wal
from tests.support import eventually


def archives(root: Path) -> list[Path]:
    return sorted(root.rglob("archive/*/*.parquet"))


def test_sealed_segments_are_archived_by_time_and_everything_is_still_there(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path.as_uri(), node="n", archive_interval_s=0.1) as store:
        store.map("m").update({"a": 1, "b": 2})
        eventually(lambda: len(archives(tmp_path)) == 1, "an archive")
        eventually(lambda: not list(tmp_path.rglob("*.wal")), "the segment goes")
        store.map("m")["a"] = 3
        eventually(lambda: len(archives(tmp_path)) == 2, "a second archive")
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        assert dict(store.map("m")) == {"a": 3, "b": 2}


def test_sealed_segments_are_archived_by_size_and_not_before(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path.as_uri(), node="n", segment_bytes=4096, archive_bytes=3 * 4096) as store:
        entries = store.map("m", raw=True)
        for number in range(2):
            entries[b"key%d" % number] = b"x" * 4096  # each seals a segment
        assert archives(tmp_path) == []
        entries[b"third"] = b"x" * 4096
        eventually(lambda: len(archives(tmp_path)) >= 1, "an archive")
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        assert len(store.map("m", raw=True)) == 3


def test_a_tail_that_may_stand_in_the_page_cache_alone_is_written_anew_before_it_counts(tmp_path: Path) -> None:
    store = imap_wal.open(tmp_path.as_uri(), node="n", durability="os", preallocate=False)
    store.map("m")["a"] = 1
    store.committer.log.close(clean=False)  # as if it were killed: nothing is synced
    (segment,) = tmp_path.rglob("*.wal")
    before = segment.stat()
    with imap_wal.open(tmp_path.as_uri(), node="n") as again:
        assert dict(again.map("m")) == {"a": 1}
        assert segment.stat().st_ino != before.st_ino, "the same file: a power loss could still take what was just given back"
        assert segment.stat().st_size == before.st_size


def test_an_embedded_store_keeps_out_of_a_log_that_hazelcast_members_write(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        store.committer.log.clusters.update(lambda manifest: replace(manifest, incarnation=2, claims={"a cluster's id": 2}))
    with pytest.raises(imap_wal.InvalidSetting, match="belongs to Hazelcast members"):
        imap_wal.open(tmp_path.as_uri(), node="other")
