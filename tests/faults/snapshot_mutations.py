"""Deliberate defects in segment snapshots, and in the compaction of a plain install."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_SNAPSHOT = "tests/unit/test_segment_snapshot.py"
_ENGINE = "tests/rewrite/test_row_engine.py"
_SMALL = "tests/durable/test_small_logs.py"

OF_SNAPSHOTS = (
    Mutation(
        "the number of entries in the last frame of a snapshot does not count",
        "imap_wal/segment/snapshot.py",
        "    if promised != records:\n",
        "    if False:\n",
        f"{_SNAPSHOT}::test_a_frame_with_other_content_is_corrupt",
    ),
    Mutation(
        "an encrypted segment snapshot may be moved",
        "imap_wal/segment/snapshot.py",
        "if reader.header.key_id and reader.header.directory != path:",
        "if False:",
        f"{_SNAPSHOT}::test_an_encrypted_snapshot_under_another_name_is_refused",
    ),
    Mutation(
        "a log may have frames of snapshots, which are skipped",
        "imap_wal/segment/reader.py",
        "            if frame.kind not in self._types:\n",
        "            if frame.kind not in (*format.TYPES, format.SNAPSHOT):\n",
        f"{_SNAPSHOT}::test_a_frame_of_a_snapshot_in_a_log_is_refused",
    ),
    Mutation(
        "a repair stops at the first damaged frame of a snapshot",
        "imap_wal/segment/snapshot.py",
        "    frames += FrameSearch(seed, data, reader.end).after(reader.end)\n",
        "",
        f"{_SNAPSHOT}::test_a_repair_reads_the_frames_around_the_damage",
    ),
    Mutation(
        "a rewrite by rows does not read the former snapshot",
        "imap_wal/rewrite/row_engine.py",
        "            for scan in snapshot_scans(name, snapshot):\n",
        "            for scan in ():\n",
        f"{_ENGINE}::test_a_kill_at_storage_calls_of_a_compaction",
    ),
    Mutation(
        "the segments of many short runs do not count",
        "imap_wal/rewrite/compaction.py",
        "sum(max(size, segment_bytes_min) for size in segments if size)",
        "sum(segments)",
        f"{_SMALL}::test_many_short_runs_leave_few_files",
    ),
    Mutation(
        "a close waits for a compaction although an error ends the block",
        "imap_wal/embedded/store.py",
        "        if error is None:\n            self.close()\n",
        "        if True:\n            self.close()\n",
        f"{_SMALL}::test_a_block_that_an_error_ends_waits_for_no_compaction",
    ),
    Mutation(
        "a program that ends waits for a compaction",
        "imap_wal/rewrite/compaction.py",
        "if threading.main_thread().is_alive() and self._fits(limit_s):",
        "if self._fits(limit_s):",
        f"{_SMALL}::test_a_program_that_ends_waits_for_no_compaction",
    ),
    Mutation(
        "a log with Parquet files is opened without pyarrow",
        "imap_wal/read/proof.py",
        "    if parquet:\n",
        "    if False:\n",
        f"{_ENGINE}::test_without_pyarrow_a_log_with_parquet_is_refused",
    ),
)
