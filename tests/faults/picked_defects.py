"""Deliberate defects at places that `tests.faults.random_defects` picked, with seed 9.

The first places of each package are here, in the order of the pick, without those where only people
would notice the change, or no one: texts of errors, sizes of caches and batches.
"""

from __future__ import annotations

from tests.faults.mutation import Mutation

PICKED = (
    Mutation(
        "the thread that archives does not pause between two looks",
        "imap_wal/write/maintenance.py",
        "            self._full.wake.wait(ARCHIVE_TICK_S)\n",
        "            pass\n",
        "tests/unit/test_archiving_thread.py::test_the_archiving_thread_pauses_between_two_looks",
    ),
    Mutation(
        "a recovered segment has the name of the former epoch",
        "imap_wal/write/recovery.py",
        "layout.recovered_path(wal, self.manifest.epoch + 1)",
        "layout.recovered_path(wal, self.manifest.epoch)",
        "tests/unit/test_open_leftovers.py::test_a_recovered_segment_is_newer_than_the_former_manifest",
    ),
    Mutation(
        "the permits of failed opens stay",
        "imap_wal/write/opening.py",
        "        for path in wal.permits:\n"
        "            if path != own:\n"
        "                self._store.delete(path)",
        "        for path in wal.permits:\n            if path != own:\n                pass",
        "tests/unit/test_open_leftovers.py::test_an_open_removes_the_permits_of_failed_opens",
    ),
    Mutation(
        "a recovery copies the last segment but one in place of the last",
        "imap_wal/write/recovery.py",
        "path = self._files[-1].path",
        "path = self._files[-2].path",
        "tests/unit/test_recovery.py::test_point_in_time_permanently_drops_entries_after_damage",
    ),
    Mutation(
        "a frame of several commits may be a byte too large",
        "imap_wal/write/committer.py",
        "count, size, stop = 0, 0, start",
        "count, size, stop = 0, -1, start",
        "tests/unit/test_frame_limit.py::test_batches_share_a_frame_up_to_exactly_its_limit",
    ),
    Mutation(
        "an open shuts out no other writer",
        "imap_wal/write/other_writers.py",
        "if manifest.clean and not context.store.capabilities.stale_listings:",
        "if manifest.clean or not context.store.capabilities.stale_listings:",
        "tests/durable/test_fenced.py::test_every_error_of_a_replaced_writer_names_its_successor",
    ),
    Mutation(
        "a log that was removed up to a reader counts as lost",
        "imap_wal/read/scan_list.py",
        "if is_read and mark > covered_to < node.manifest.removed:",
        "if is_read and mark > covered_to <= node.manifest.removed:",
        "tests/restore/test_removed_logs.py::test_a_log_removed_up_to_a_reader_is_no_loss",
    ),
    Mutation(
        "a view does not merge what was appended",
        "imap_wal/read/merge.py",
        "if news is not None and not news[1]:",
        "if news is not None and news[1]:",
        "tests/restore/test_clears.py::test_late_change_with_lower_order_stays_cleared",
    ),
    Mutation(
        "the first snapshot of a map is not merged",
        "imap_wal/read/merge.py",
        "if generation == 0 or snapshot.dropped > generation or ahead:",
        "if generation != 0 or snapshot.dropped > generation or ahead:",
        "tests/restore/test_merged_snapshots.py::test_a_snapshot_of_merged_entries_is_not_read_again",
    ),
    Mutation(
        "of the claims of two nodes only the last one is kept",
        "imap_wal/rules/newer.py",
        "            return None\n        if order != other:\n",
        "            return True\n        if order != other:\n",
        "tests/restore/test_rivals.py::test_value_wins_over_tombstone_then_first_name",
    ),
    Mutation(
        "a read ends where a file was archived meanwhile",
        "imap_wal/read/cluster.py",
        "if scan.kind == SNAPSHOT or not attempts:",
        "if scan.kind == SNAPSHOT or attempts:",
        "tests/rewrite/test_rewrite.py::test_a_rewrite_that_takes_longer_than_the_archive_interval_ends",
    ),
    Mutation(
        "the first entry of a frame is named instead of the invalid one",
        "imap_wal/read/scan.py",
        "            place = first._replace(index=index)",
        "            place = first._replace(index=0)",
        "tests/hostile/test_impossible_entries.py::test_an_unusable_entry_is_an_error_with_its_position",
    ),
    Mutation(
        "a rewrite in tasks takes ranges with new entries for unchanged ones",
        "imap_wal/rewrite/task_engine.py",
        "                touched.setdefault(name, set()).update(numbers)\n",
        "                pass\n",
        "tests/rewrite/test_changed_ranges.py::test_a_range_with_a_new_entry_is_merged_again",
    ),
    Mutation(
        "the lease of a rewrite is not renewed while it runs",
        "imap_wal/rewrite/turn.py",
        "if not stop.wait(RENEW_S):",
        "if stop.wait(RENEW_S):",
        "tests/rewrite/test_turn.py::test_a_lease_is_renewed_while_the_rewrite_runs",
    ),
    Mutation(
        "sorted rows are not written to scratch",
        "imap_wal/rewrite/columns/winners.py",
        "        self._scratch.add(self._tag, page)\n",
        "        pass\n",
        "tests/rewrite/test_columns.py::test_rows_are_sorted_in_bounded_memory",
    ),
    Mutation(
        "the border of a part is only computed after a kept part",
        "imap_wal/rewrite/part_writer.py",
        "if self._parts and not self._parts[-1].is_kept:",
        "if self._parts and self._parts[-1].is_kept:",
        "tests/rewrite/test_incremental.py::test_only_the_range_with_a_new_entry_is_rewritten",
    ),
    Mutation(
        "a decision about a conflict drops other changes of the node",
        "imap_wal/rules/decided.py",
        "return pair == decided and node != winner",
        "return pair != decided and node != winner",
        "tests/rewrite/test_archive_runs.py::test_a_decision_about_a_conflict_counts_in_archives",
    ),
    Mutation(
        "a rewrite by columns keeps what does not count and drops the rest",
        "imap_wal/rewrite/columns/merge.py",
        "stays = pa.array([(number, place) not in gone for place in order], pa.bool_())",
        "stays = pa.array([(number, place) in gone for place in order], pa.bool_())",
        "tests/cli/test_conflicts.py::test_a_rewrite_keeps_all_claims_without_a_resolution",
    ),
    Mutation(
        "a missing snapshot file is looked for without end",
        "imap_wal/retention/snapshots.py",
        "if newer is None or (newer.generation, newer.files) == (",
        "if newer is None and (newer.generation, newer.files) == (",
        "tests/rewrite/test_missing_snapshot.py::test_a_missing_file_of_the_newest_snapshot_is_damage",
    ),
    Mutation(
        "a backfill begins although the cluster's manifest is older than the log",
        "imap_wal/retention/backfill.py",
        "    current_cluster(log.context, log.folder, log.manifests)\n",
        "    pass\n",
        "tests/rewrite/test_backfill_of_older_manifest.py::test_a_backfill_refuses_an_older_cluster_manifest",
    ),
    Mutation(
        "files of snapshots that are in use are removed",
        "imap_wal/retention/snapshots.py",
        "gone = tuple(file for file in files if file.path not in for_readers and former.has(file))",
        "gone = tuple(file for file in files if file.path not in for_readers or former.has(file))",
        "tests/rewrite/test_prune.py::test_prune_removes_what_is_covered_and_nothing_else",
    ),
    Mutation(
        "the age limit counts only above the size limit",
        "imap_wal/retention/removal.py",
        "if old or (size_limit_mb > 0 and kept_bytes > size_limit_mb * MB):",
        "if old and (size_limit_mb > 0 and kept_bytes > size_limit_mb * MB):",
        "tests/durable/test_retention.py::test_the_age_limit_removes_only_older_files",
    ),
    Mutation(
        "output of a storage driver mixes with the answers of another process",
        "imap_wal/retention/other_process.py",
        "os.dup2(2, 1)  # the output of a storage driver must not mix with the answer",
        "os.dup2(3, 1)  # the output of a storage driver must not mix with the answer",
        "tests/archive/test_output_of_drivers.py::test_output_of_a_driver_does_not_mix_with_answers",
    ),
    Mutation(
        "a writer cannot tell whether it has won when there is a newer manifest",
        "imap_wal/manifest/store.py",
        'won = bool(files) and self._decode(max(files))[0]["floor"] <= number',
        'won = bool(files) and self._decode(max(files))[1]["floor"] <= number',
        "tests/unit/test_manifest.py::test_writer_has_won_when_another_builds_on_its_manifest",
    ),
    Mutation(
        "files that are no archives are compared with archives",
        "imap_wal/manifest/older.py",
        "elif archive is not None and manifest.archived < archive.last[:2] not in unarchived:",
        "elif archive is None and manifest.archived < archive.last[:2] not in unarchived:",
        "tests/unit/test_evidence.py::test_open_and_verify_agree_on_files_newer_than_manifest",
    ),
    Mutation(
        "the first lists of archives are not written",
        "imap_wal/manifest/list_files.py",
        "        if len(direct) > NEWEST_MAX:",
        "        if lists and len(direct) > NEWEST_MAX:",
        "tests/unit/test_list_files.py::test_the_manifest_has_few_archives_and_names_lists",
    ),
    Mutation(
        "segments without copies are promised to have some",
        "imap_wal/manifest/node.py",
        "return acks if acks and first <= segment and former_losses == losses else 1",
        "return acks if acks or first <= segment and former_losses == losses else 1",
        "tests/disks/test_losses.py::test_what_a_recovery_cuts_is_a_loss",
    ),
    Mutation(
        "lists of files that are side by side are written again",
        "imap_wal/manifest/snapshots.py",
        "small = next((at for at in range(len(ends)) if 0 < starts[at] - ends[at] < least), None)",
        "small = next((at for at in range(len(ends)) if -1 < starts[at] - ends[at] < least), None)",
        "tests/unit/test_part_lists.py::test_a_rewrite_of_one_range_writes_one_list",
    ),
    Mutation(
        "an answer with all entries waits until its time is over",
        "imap_wal/agent/reads/reads.py",
        "            and (not taken or self._clock.monotonic() < until)",
        "            or (not taken or self._clock.monotonic() < until)",
        "tests/agent/test_answers.py::test_an_answer_ends_with_the_last_requested_key",
    ),
    Mutation(
        "an agent that members read merges nothing in advance",
        "imap_wal/agent/reads/merges.py",
        "if not is_read or (self.unmerged_bytes < FRESH_BYTES and not self.error):",
        "if not is_read or (self.unmerged_bytes < FRESH_BYTES or not self.error):",
        "tests/agent/test_reads.py::test_much_that_was_appended_is_merged_without_a_request",
    ),
    Mutation(
        "the first message of a connection is refused",
        "imap_wal/agent/transport/connection_limit.py",
        "            if connection is None:",
        "            if connection is not None:",
        "tests/hostile/test_connect_without_a_key.py::test_a_member_with_its_key_reads_and_writes",
    ),
    Mutation(
        "a message of three frames counts as one of two",
        "imap_wal/agent/transport/network.py",
        'payload, others = (part, 0) if others < 0 else (b"", others + 1)',
        'payload, others = (part, 0) if others <= 0 else (b"", others + 1)',
        "tests/agent/test_answers.py::test_a_request_with_a_third_frame_is_refused",
    ),
    Mutation(
        "sealed segments are not uploaded",
        "imap_wal/agent/own_disk/uploads.py",
        "            self._upload_sealed(stop)\n",
        "            pass\n",
        "tests/disks/test_uploads.py::test_a_damaged_upload_is_deleted_and_made_again",
    ),
    Mutation(
        "a plug-in's first hello makes no session",
        "imap_wal/agent/membership/sessions.py",
        "if session is None:",
        "if session is not None:",
        "tests/agent/test_append.py::test_a_change_is_acknowledged_when_it_is_in_the_log",
    ),
)

_JAVA = "hazelcast_plugin/plugin/src/main/java/io/imapwal/hazelcast"

PICKED_IN_JAVA = (
    Mutation(
        "a map that is destroyed is made again",
        f"{_JAVA}/member/RecordStores.java",
        "&& DurableMaps.isDurable(nodeEngine, map)",
        "|| DurableMaps.isDurable(nodeEngine, map)",
        "DropTest#destroyedMapIsGone",
    ),
    Mutation(
        "a transaction has the order of the changes after it",
        f"{_JAVA}/append/OrderGuard.java",
        "long turn = turns.addAndGet(partitionId, 2) - 1;",
        "long turn = turns.addAndGet(partitionId, 2) - 0;",
        "OrderGuardTest#placeIsAfterFormerChangesAndBeforeLaterOnes",
    ),
    Mutation(
        "the digest of a partition with entries is not computed",
        f"{_JAVA}/settle/MapState.java",
        "if (store == null) {",
        "if (store != null) {",
        "DigestTest#digestComparedLateSettlesThePartition",
    ),
    Mutation(
        "a partition with a change under way migrates as whole",
        f"{_JAVA}/settle/PartitionMoves.java",
        "} else if (operation != null) {",
        "} else if (operation == null) {",
        "DoubtHandoverTest#nextOwnerSettlesChangeThatIsNotInMemoryYet",
    ),
    Mutation(
        "a refused transaction has an unknown outcome",
        f"{_JAVA}/append/Outcomes.java",
        "return changes.isEmpty() || pending.whole ? failure",
        "return changes.isEmpty() && pending.whole ? failure",
        "OutcomesTest#refusedTransactionIsCertain",
    ),
    Mutation(
        "a partition with entries in memory counts as empty",
        f"{_JAVA}/settle/MapState.java",
        "return size(partition) == 0 && !indexes.any(partition);",
        "return size(partition) != 0 && !indexes.any(partition);",
        "SettlementTest#partitionThatMovedIsNotSettledHere",
    ),
)
"""The plug-in's. `test`: class and method."""
