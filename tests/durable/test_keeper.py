"""What happens to a log while nobody asks: archives by time and by size."""

from __future__ import annotations

from pathlib import Path

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
