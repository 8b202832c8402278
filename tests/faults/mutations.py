"""Deliberate defects, each with the test that must catch it. A defect is a change of the source;
where its text is no longer found, correct it here.

python -m tests.faults.mutations        tries all of them
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.faults.adapter_mutations import OF_ADAPTERS
from tests.faults.atomic_mutations import OF_ATOMIC_CHANGES
from tests.faults.chart_mutations import OF_CHART
from tests.faults.column_mutations import OF_COLUMNS
from tests.faults.entry_mutations import OF_ENTRIES
from tests.faults.identity_mutations import OF_IDENTITIES
from tests.faults.memory_mutations import OF_MEMORY
from tests.faults.mutation import Mutation
from tests.faults.oss_mutations import OF_OSS
from tests.faults.process_mutations import OF_PROCESSES
from tests.faults.publish_mutations import OF_PUBLISHED
from tests.faults.reading_mutations import OF_READING
from tests.faults.refusal_mutations import OF_REFUSALS
from tests.faults.retention_mutations import OF_RETENTION
from tests.faults.snapshot_mutations import OF_SNAPSHOTS
from tests.faults.socket_mutations import OF_SOCKETS
from tests.faults.stream_mutations import OF_STREAMS
from tests.faults.working_copy import of_python

_FAULTS = "tests/faults"
_RELEASE = "tests/restore/test_release.py"
_REWRITES = "tests/rewrite"


KILL = f"{_FAULTS}/test_fault_01_kill.py::test_a_kill_at_every_storage_operation_loses_nothing"
LOSS = (
    f"{_FAULTS}/test_fault_02_power_loss.py::"
    "test_a_power_loss_at_every_storage_operation_loses_nothing"
)
NAMES_LOST = (
    f"{_FAULTS}/test_fault_02_power_loss.py::"
    "test_a_power_loss_dropping_everything_unsynced_loses_nothing"
)
OPERATION = f"{_FAULTS}/test_fault_09_names.py::test_local_operations_survive_losing_unsynced_names"

MUTATIONS = (
    Mutation(
        "no sync before the acknowledgement",
        "imap_wal/write/committer.py",
        "if self._syncs_each or late:",
        "if late:",
        LOSS,
    ),
    Mutation(
        "a clock that differs expires entries",
        "imap_wal/agent/membership/clocks.py",
        "return 0 if self.doubt else self._clock.now_ms()",
        "return self._clock.now_ms()",
        "tests/agent/test_clocks.py::test_a_fast_agent_restores_entries_that_have_time_left",
    ),
    Mutation(
        "a stream on an older Spark need not say that it has another trigger",
        "pyspark_imap_wal/stream.py",
        "    if not options.available_now:\n",
        "    if False:\n",
        "tests/spark/test_older_spark.py::test_older_spark_is_refused_what_it_does_wrongly",
    ),
    Mutation(
        "bytes cut out of the newest segment are a torn tail",
        "imap_wal/segment/reader.py",
        "synced, cut_bytes = frame.synced, frame.offset - at",
        "cut_bytes = frame.offset - at",
        "tests/unit/test_cut_segments.py::"
        "test_two_acknowledged_commits_that_were_cut_out_are_found",
    ),
    Mutation(
        "fdatasync does nothing",
        "storage_backends/descriptors.py",
        "            _sync_data(self._fd)\n",
        "            pass\n",
        NAMES_LOST,
    ),
    Mutation(
        "directory not synced",
        "storage_backends/descriptors.py",
        "        os.fsync(fd)\n        return os.fstat(fd)",
        "        return os.fstat(fd)",
        NAMES_LOST,
    ),
    Mutation(
        "folders above a new name not synced",
        "storage_backends/local_listing.py",
        "            self.sync_name(folder)\n",
        "            pass\n",
        f"{OPERATION}[create in a folder of another process]",
    ),
    Mutation(
        "name of a new segment not synced",
        "storage_backends/local.py",
        "                self._folders.sync_name(target)\n            except",
        "                pass\n            except",
        f"{OPERATION}[open_append]",
    ),
    Mutation(
        "published before its bytes are synced",
        "storage_backends/local.py",
        "                os.fsync(fd)\n                place(",
        "                place(",
        f"{OPERATION}[create]",
    ),
    Mutation(
        "deletion not synced",
        "storage_backends/local_listing.py",
        "                sync_folder(folder)\n            except FileNotFoundError:\n"
        "                pass  # removed",
        "                pass\n            except FileNotFoundError:\n"
        "                pass  # removed",
        f"{OPERATION}[delete beside another]",
    ),
    Mutation(
        "manifest published by overwriting",
        "storage_backends/local.py",
        "self._publish(path, lambda: (data,), os.link)",
        "self._publish(path, lambda: (data,), os.replace)",
        "tests/unit/test_manifest.py::test_three_processes_make_each_update_exactly_once",
    ),
    Mutation(
        "CRC not seeded with the segment id",
        "imap_wal/format.py",
        "return int(google_crc32c.value(self.segment_id))",
        "return 0",
        "tests/unit/test_format.py::test_a_stale_frame_of_a_recycled_segment_does_not_verify",
    ),
    Mutation(
        "CRC without the frame's offset",
        "imap_wal/format.py",
        '_SEED = struct.Struct("<QII")',
        '_SEED = type("S", (), {"pack": lambda self, a, b, c: struct.pack("<II", b, c), "size": '
        "16})()",
        "tests/unit/test_format.py::test_frame_copied_within_its_segment_does_not_verify",
    ),
    Mutation(
        "CRC not compared",
        "imap_wal/format.py",
        "payload) != checksum:",
        "payload) is None:",
        f"{_FAULTS}/test_fault_03_damaged_bytes.py::test_a_bit_flipped_in_any_field_is_found_and_located[value]",
    ),
    Mutation(
        "tombstone dropped early",
        "imap_wal/rules/dropped.py",
        "        if not self.complete or len(self.open_nodes) > 1:\n"
        "            return pa.repeat(pa.scalar(False), table.num_rows)\n",
        "        self = type(self)(self.now_ms, True, current=self.current)\n",
        "tests/rewrite/test_tombstones.py::test_a_tombstone_stays_while_another_store_may_append",
    ),
    Mutation(
        "changes of owners that were replaced count",
        "imap_wal/rules/counts.py",
        "return [not row[ORDER] < ",
        "return [True or row[ORDER] < ",
        f"{_REWRITES}/test_tombstones.py::test_replaced_owner_does_not_undo_a_deletion",
    ),
    Mutation(
        "what a rewrite learned of partitions is not kept for the next one",
        "imap_wal/rewrite/plan.py",
        "versions=known_versions(before) if complete",
        "versions=NO_VERSIONS if complete",
        f"{_REWRITES}/test_tombstones.py::test_tombstone_unseen_by_later_rewrite_still_voids_older",
    ),
    Mutation(
        "partition versions of a snapshot's tombstones are lost",
        "imap_wal/rewrite/tally.py",
        "self._learn([row for row in rows if may_be_dropped(row)])",
        "pass",
        f"{_REWRITES}/test_tombstones.py::test_tombstone_dropped_by_second_rewrite_still_voids_older",
    ),
    Mutation(
        "a drop loses partition versions",
        "imap_wal/rewrite/drop.py",
        "return known_versions(before).raised(pairs.items())",
        "return known_versions(before)",
        f"{_REWRITES}/test_drop.py::test_replaced_owners_change_stays_void_after_drop",
    ),
    Mutation(
        "a rewrite below the orphan floor is published",
        "imap_wal/rewrite/publish.py",
        "if plan.generation < manifest.orphan_floor:",
        "if plan.generation < 0:",
        f"{_REWRITES}/test_prune.py::test_the_floor_is_checked_in_the_compare_and_swap",
    ),
    Mutation(
        "files of a slow rewrite deleted without raising the floor",
        "imap_wal/retention/snapshots.py",
        "else log.manifests.update(change)",
        "else change(manifest)",
        f"{_REWRITES}/test_prune.py::test_the_floor_is_checked_in_the_compare_and_swap",
    ),
    Mutation(
        "new snapshot files not read before they are published",
        "imap_wal/rewrite/run.py",
        "                confirm(log, plan, result)\n",
        "                pass\n",
        f"{_REWRITES}/test_damaged_files.py::test_rewrite_with_a_changed_part_publishes_nothing",
    ),
    Mutation(
        "snapshot not read before what it covers is removed",
        "imap_wal/retention/snapshots.py",
        "check_contents(log.store, file.path, checksum, file.size)",
        "pass",
        f"{_REWRITES}/test_damaged_files.py::test_covered_files_stay_while_their_snapshot_is_damaged",
    ),
    Mutation(
        "part names that are not unique",
        "imap_wal/rewrite/plan.py",
        "-{number:05d}-{token}{suffix}",
        "-{number:05d}{suffix}",
        "tests/spark/test_spark.py::test_a_task_that_runs_twice_loses_nothing",
    ),
    Mutation(
        "clock of the rewriting machine not measured",
        "imap_wal/clock.py",
        "abs(skew_ms) > skew_ms_max",
        "skew_ms is None",
        f"{_REWRITES}/test_tombstones.py::test_rewrite_with_a_wrong_clock_is_refused",
    ),
    Mutation(
        "a segment that was archived is not read further",
        "imap_wal/read/cluster.py",
        "        for following in self.replaced(scan, place, maps):",
        "        for following in ():",
        f"{_REWRITES}/test_rewrite.py::test_a_rewrite_that_takes_longer_than_the_archive_interval_ends",
    ),
    Mutation(
        "partitions on scratch lack the keys that were added since",
        "imap_wal/read/newest/stored_rows.py",
        "rows = table.windows(after, partitions)\n",
        "rows = table.windows(after, partitions) if partitions is None else iter(())\n",
        f"{_RELEASE}::test_an_index_equals_a_dict_over_releases",
    ),
    Mutation(
        "an index without room for rows claims to know their places",
        "imap_wal/read/newest/stored_rows.py",
        "all(run.partition_count == count",
        "any(run.partition_count == count",
        f"{_RELEASE}::test_an_index_equals_a_dict_over_releases",
    ),
    Mutation(
        "a waiting reader does not end a release",
        "imap_wal/read/newest/index.py",
        "                raise _Interrupted\n",
        "                pass\n",
        f"{_RELEASE}::test_a_release_ends_when_a_reader_waits",
    ),
    Mutation(
        "a waiting reader does not end a merge of runs",
        "imap_wal/read/newest/index.py",
        "self._stored.merge(merging, partition_count, check)",
        "self._stored.merge(merging, partition_count)",
        f"{_RELEASE}::test_every_part_of_a_release_ends_when_a_reader_waits",
    ),
    Mutation(
        "the places of replaced entries stay in memory",
        "imap_wal/read/newest/index.py",
        "return others or self._stored.alike()",
        "return others",
        f"{_RELEASE}::test_updates_of_the_same_keys_take_no_more_memory",
    ),
    Mutation(
        "another partition count ends all releases",
        "imap_wal/read/newest/index.py",
        "return others or self._stored.alike()",
        "return self._stored.alike()",
        f"{_RELEASE}::test_another_partition_count_gets_its_own_places",
    ),
    Mutation(
        "a missing scratch folder is no shortage of room",
        "imap_wal/read/newest/stored_rows.py",
        "        with self._needing_room():\n            room",
        "        if True:\n            room",
        f"{_RELEASE}::test_a_missing_scratch_folder_leaves_rows_in_memory",
    ),
    Mutation(
        "a release begins again at once",
        "imap_wal/agent/reads/merges.py",
        "            self._release_after(again_s)\n",
        "            pass\n",
        f"{_RELEASE}::test_a_release_never_begins_again_at_once",
    ),
    Mutation(
        "a connection that ends ends a release",
        "imap_wal/agent/reads/reads.py",
        "return bool(self._queued) or",
        "return not self._queue.empty() or",
        f"{_RELEASE}::test_only_a_request_ends_a_release",
    ),
    Mutation(
        "a claim does not name a node whose log is gone",
        "imap_wal/agent/membership/operator_claim.py",
        "if node in belonging or not changed_ms:",
        "if node in belonging:",
        "tests/cli/test_claim.py::test_a_claim_names_missing_nodes_and_the_choices",
    ),
    Mutation(
        "the page is green while a new cluster waits",
        "imap_wal/agent/monitoring/health.py",
        "    if now.waiting_seconds:\n",
        "    if now.fenced:\n",
        "tests/monitoring/test_status_page.py::test_state_is_green_only_if_no_map_waits",
    ),
    Mutation(
        "a damaged backup counts as a backup",
        "imap_wal/backup/run.py",
        "        if not backup.damaged:\n            for log",
        "        if True:\n            for log",
        "tests/agent/test_upkeep.py::test_only_the_newest_whole_backup_is_recorded",
    ),
    Mutation(
        "pages by rows, not by bytes",
        "imap_wal/read/newest/index.py",
        "self.page_bytes = min(max(memory_bytes // 16, PAGE_BYTES_MIN), PAGE_BYTES_MAX)",
        "self.page_bytes = 2**62",
        "tests/rewrite/test_large_values.py::test_large_values_restore_and_rewrite_within_memory_bound",
    ),
    Mutation(
        "an unexpected error ends a thread of the agent",
        "imap_wal/worker.py",
        "except Exception as error:  # noqa: BLE001  # whatever",
        "except ImportError as error:  # whatever",
        "tests/agent/test_threads.py::test_reads_are_answered_while_the_scratch_disk_is_full",
    ),
    Mutation(
        "requests to a dead thread get no answer",
        "imap_wal/agent/server.py",
        "for message in self._reads.unanswered():",
        "for message in ():",
        "tests/agent/test_threads.py::test_a_dead_read_thread_is_reported",
    ),
    Mutation(
        "part names of a large range are those of the next",
        "imap_wal/rewrite/plan.py",
        'part-{partition:05d}-{number:05d}-{token}{suffix}"',
        'part-{partition * 1000 + number:05d}{suffix}"',
        "tests/spark/test_spark.py::test_range_of_many_parts_is_complete_and_ordered",
    ),
    Mutation(
        "rows of a file not compared with the manifest",
        "imap_wal/parquet/reader.py",
        "if expected.records and count != expected.records:",
        "if expected.records and count < 0:",
        f"{_REWRITES}/test_damaged_files.py::test_snapshot_of_another_map_or_with_missing_rows_is_refused",
    ),
    Mutation(
        "verify does not look for conflicts of order",
        "imap_wal/inspect/verify.py",
        "    texts = conflicts.found(log, check=check)\n",
        "    texts: list[str] = []\n",
        "tests/cli/test_conflicts.py::test_commands_name_map_key_and_positions_of_a_conflict[verify]",
    ),
    Mutation(
        "doctor does not look for conflicts of order",
        "imap_wal/inspect/verify.py",
        "        findings += order(context, view)\n",
        "        findings += []\n",
        "tests/cli/test_conflicts.py::test_commands_name_map_key_and_positions_of_a_conflict[doctor]",
    ),
    Mutation(
        "of two claims the one that was read first counts",
        "imap_wal/rules/newer.py",
        "return sorted([*rivals, new], key=self._rank)",
        "return [*rivals, new]",
        "tests/restore/test_rivals.py::test_value_wins_over_tombstone_then_first_name",
    ),
    Mutation(
        "a rewrite drops the claims that lost",
        "imap_wal/rewrite/columns/merge.py",
        "            lost.update(losers)\n",
        "            gone.update(losers)\n",
        "tests/cli/test_conflicts.py::test_a_rewrite_keeps_all_claims_without_a_resolution",
    ),
    Mutation(
        "the cluster's manifest is read for each acknowledgement",
        "imap_wal/agent/membership/sessions.py",
        "        current = self.claims.newest()\n",
        "        self._log.clusters.read()\n        current = self.claims.newest()\n",
        "tests/actors/test_metadata_size.py::test_an_acknowledgement_reads_no_manifest",
    ),
    Mutation(
        "lifetimes are never removed",
        "imap_wal/rewrite/prune.py",
        "        _drop_lifetimes(log)\n",
        "        pass\n",
        "tests/actors/test_metadata_size.py::test_lifetimes_whose_entries_were_removed_are_dropped",
    ),
    Mutation(
        "requests of all sessions are kept",
        "imap_wal/manifest/node.py",
        "if session in current or self.session - SESSIONS_KEPT < session < SHARED_SESSIONS\n",
        "if session in current or 0 < session < SHARED_SESSIONS\n",
        "tests/actors/test_metadata_size.py::test_requests_of_old_sessions_are_dropped",
    ),
    Mutation(
        "small archives are not merged",
        "imap_wal/retention/archive_writer.py",
        "    while ordered and is_absorbable(ordered[-1].bytes, ordered[-1].unpacked):",
        "    while ordered and ordered[-1].bytes < 0:",
        "tests/archive/test_absorb.py::test_thousands_of_archive_runs_leave_few_archives",
    ),
    Mutation(
        "a failed sync is forgotten",
        "imap_wal/write/committer.py",
        '            self._poison(error, "sync" if commit.written else "write")\n',
        "",
        f"{_FAULTS}/test_fault_06_errors_of_the_storage.py::test_a_failed_sync_is_never_acknowledged_or_retried",
    ),
    Mutation(
        "a failed sync may be tried again by the backend",
        "storage_backends/descriptors.py",
        "            os.close(self._forget())\n            raise translate",
        "            raise translate",
        "tests/storage/test_local_space.py::test_failed_sync_cannot_be_followed_by_one_that_succeeds",
    ),
    Mutation(
        "fence not checked",
        "imap_wal/write/permit.py",
        "(self, segment: Held | None = None) -> None:\n",
        "(self, segment: Held | None = None) -> None:\n        return\n",
        f"{_FAULTS}/test_fault_12_writers.py::test_a_writer_replaced_before_any_operation_acknowledges_nothing",
    ),
    Mutation(
        "segments deleted before the manifest names their archive",
        "imap_wal/retention/archive.py",
        "        self._publish(work)\n"
        "        self._delete(self._wal.archived + tuple(segments) + self._wal.copied)\n",
        "        self._delete(self._wal.archived + tuple(segments) + self._wal.copied)\n"
        "        self._publish(work)\n",
        "tests/archive/test_archive.py::test_crash_during_archive_loses_nothing",
    ),
    Mutation(
        "object that fences a replaced writer deleted with the others",
        "imap_wal/retention/sealed_segments.py",
        "if path not in retained]",
        "if path or retained]",
        "tests/unit/test_writer.py::test_replaced_object_writer_acknowledges_nothing",
    ),
    Mutation(
        "sealed segment archived, last entry left out",
        "imap_wal/parquet/archive_rows.py",
        "rows.take(order.slice(start, group))",
        "rows.take(order.slice(start, group)[:-1])",
        KILL,
    ),
    Mutation(
        "archive that is sorted by key is read as if it were in the order of the log",
        "imap_wal/parquet/reader.py",
        "if by_position:",
        "if False:",
        "tests/unit/test_golden_log.py::test_golden_archives_are_read_in_the_order_of_the_log",
    ),
    Mutation(
        "manifest of another format is read",
        "imap_wal/manifest/store.py",
        "if format != self._kind.format:",
        "if False:",
        "tests/unit/test_manifest.py::test_manifest_of_another_format_is_not_overwritten",
    ),
    *OF_RETENTION,
    Mutation(
        "lost rows of a sorted archive are taken to be after the last readable one",
        "imap_wal/parquet/salvage.py",
        "begins = _first_after(file, group, done)",
        "begins = found.places[-1] if done and found.places else None",
        "tests/cli/test_repair_metadata.py::test_point_in_time_ends_where_lost_rows_begin",
    ),
    Mutation(
        "mark one frame beyond what was merged",
        "imap_wal/rewrite/publish.py",
        "raised[node] = LowWaterMark(directory, position)",
        "raised[node] = LowWaterMark(directory, position._replace(frame=position.frame + 100_000))",
        f"{_FAULTS}/test_fault_12_writers.py::test_interleaved_maintenance_loses_nothing",
    ),
    Mutation(
        "lock file closed at once",
        "storage_backends/local.py",
        "                return LocalLock(fd)\n        raise Unavailable",
        "                os.close(fd)\n                return LocalLock(os.open(os.devnull, "
        "os.O_RDONLY))\n        raise Unavailable",
        f"{_FAULTS}/test_fault_15_directories.py::test_two_names_of_one_directory_share_a_lock",
    ),
    Mutation(
        "descriptor of a sealed segment not closed",
        "imap_wal/write/node_log.py",
        "            self._sealed = True\n        self.close()",
        "            self._sealed = True",
        f"{_FAULTS}/test_fault_14_leaks.py::test_a_thousand_opens_leave_no_file_descriptor_and_no_thread",
    ),
    Mutation(
        "a disk that cannot be read looks empty",
        "imap_wal/manifest/node.py",
        "uploaded = bool(self.address) and not wal.logs and not self.unseen(wal)",
        "uploaded = bool(self.address)",
        "tests/disks/test_uploads.py::test_a_lost_disk_costs_what_was_not_uploaded",
    ),
    Mutation(
        "an uploaded segment is not compared with the one on the disk",
        "imap_wal/agent/own_disk/uploads.py",
        "if on_disk != there:",
        "if False:",
        "tests/disks/test_uploads.py::test_a_damaged_upload_is_deleted_and_made_again",
    ),
    Mutation(
        "a damaged segment on an own disk replaces its uploaded copy",
        "imap_wal/agent/own_disk/uploads.py",
        "demand_disk_is_right(self._store, path",
        "print(self._store, path",
        "tests/disks/test_differing_copies.py::test_a_damaged_disk_never_replaces_its_upload",
    ),
    Mutation(
        "a recovery deletes an upload that is better than the own disk",
        "imap_wal/write/recovery.py",
        "        demand_no_better_copy(self._context.own_disk, wal, self.manifest.directory)\n",
        "",
        "tests/disks/test_differing_copies.py::test_a_recovery_never_deletes_a_better_upload",
    ),
    Mutation(
        "entries on an own disk that the root does not know of",
        "imap_wal/write/node_log.py",
        "if self.context.address:\n                # Without",
        "if False:\n                # Without",
        "tests/disks/test_uploads.py::test_a_segment_that_the_root_lacks_is_not_begun",
    ),
    Mutation(
        "a second lost disk is taken for the first one",
        "imap_wal/manifest/node.py",
        "first <= segment and former_losses == losses else 1",
        "first <= segment else 1",
        "tests/disks/test_promises.py::test_a_restore_that_is_allowed_lacks_nothing",
    ),
    Mutation(
        "a session without copies leaves the promise of its segment",
        "imap_wal/manifest/node.py",
        "        if acks >= before:\n",
        "        if True:\n",
        "tests/disks/test_promises.py::test_a_session_without_copies_ends_the_promise",
    ),
    Mutation(
        "members get the maps of programs",
        "imap_wal/agent/reads/reads.py",
        "demand_of_members(name, key_class)",
        "pass",
        "tests/agent/test_foreign_maps.py::test_a_map_of_a_program_is_refused_to_members",
    ),
    Mutation(
        "each load searches a map without live keys",
        "imap_wal/agent/reads/reads.py",
        "if key_class is not None and is_of_programs(key_class):",
        "if True:",
        "tests/agent/test_foreign_maps.py::test_a_map_without_live_keys_is_not_searched",
    ),
    Mutation(
        "doctor does not report maps that no list names",
        "rewrite_cli/doctor/agent.py",
        "    if unnamed:\n",
        "    if False:\n",
        "tests/agent/test_members.py::test_doctor_names_maps_that_are_not_durable",
    ),
    *OF_IDENTITIES,
    *OF_MEMORY,
    *OF_ADAPTERS,
    *OF_ATOMIC_CHANGES,
    *OF_PROCESSES,
    *OF_READING,
    *OF_ENTRIES,
    *OF_REFUSALS,
    *OF_SNAPSHOTS,
    *OF_PUBLISHED,
    *OF_STREAMS,
    *OF_OSS,
    *OF_CHART,
    *OF_COLUMNS,
    *OF_SOCKETS,
)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sources = of_python(Path(folder))
        for mutation in MUTATIONS:
            print(f"{mutation.name}: {sources.survives(mutation) or 'caught'}", flush=True)
