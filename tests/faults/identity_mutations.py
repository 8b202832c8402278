"""Deliberate defects of identities: folders and logs that are replaced, and nodes that are
forgotten. See `tests.faults.mutations`."""

from __future__ import annotations

from tests.faults.mutation import Mutation

REPLACED = (
    "tests/actors/test_replaced_folders.py::"
    "test_nothing_is_acknowledged_after_a_folder_was_replaced"
)

OF_ANOTHER = "tests/restore/test_marks_of_copies.py::test_a_mark_covers_no_entry_of_another_copy"
FORMER = "tests/cli/test_former_snapshots.py"
ACCEPTED = (
    "tests/agent/test_accepted_losses.py::test_a_running_member_continues_after_an_accepted_loss"
)

OF_IDENTITIES = (
    Mutation(
        "a position of a forgotten epoch gets the id of another one",
        "imap_wal/manifest/epochs.py",
        "of(position, epoch.id) if position.epoch == epoch.number else position",
        "of(position, epoch.id)",
        "tests/log/test_other_histories.py::test_a_position_gets_the_id_of_its_own_epoch",
    ),
    Mutation(
        "a session continues after entries of its log were lost",
        "imap_wal/manifest/node.py",
        "return None if session in self.former else session",
        "return session",
        f"{ACCEPTED}[another-disk]",
    ),
    Mutation(
        "a session continues after what was acknowledged in it was given up",
        "imap_wal/write/opening.py",
        "claimed.with_sessions_ended() if gives_up and accepts else claimed",
        "claimed",
        f"{ACCEPTED}[point-in-time]",
    ),
    Mutation(
        "a repaired copy continues the sessions of its log",
        "imap_wal/repair/node.py",
        "            manifest.with_sessions_ended(),\n",
        "            manifest,\n",
        f"{ACCEPTED}[repaired-copy]",
    ),
    Mutation(
        "a permit is known by its name",
        "imap_wal/write/permit.py",
        "self._file is not None and not self._file.is_there()",
        "self._file is not None and not self._store.exists(self._path)",
        "tests/actors/test_replaced_folders.py::test_an_idle_writer_notices_a_replaced_folder",
    ),
    Mutation(
        "an open segment is known by its name",
        "imap_wal/write/permit.py",
        "if segment is not None and not segment.is_there():",
        "if segment is not None and not self._store.exists(segment.path):",
        f"{REPLACED}[segment_copied-always]",
    ),
    Mutation(
        "a folder that was moved away counts as a takeover",
        "imap_wal/write/permit.py",
        "and (is_mine or not number):",
        "and is_mine:",
        f"{REPLACED}[away-always]",
    ),
    Mutation(
        "a position of another history is read on",
        "imap_wal/manifest/epochs.py",
        "            if _has(epoch, position):\n                return Position(*position)",
        "            if True:\n                return Position(*position)",
        "tests/cli/test_other_histories.py::test_a_restored_backup_refuses_what_it_lacks",
    ),
    Mutation(
        "an epoch keeps its id in each copy",
        "imap_wal/write/opening.py",
        "                epoch_id(randomness.token()),\n",
        "                '0' * 12,\n",
        "tests/log/test_other_histories.py::test_a_position_in_what_a_copy_lacks_is_refused",
    ),
    Mutation(
        "a segment of another copy is not noticed",
        "imap_wal/segment/verdict.py",
        "if place.epoch_ids and header.epoch_id not in place.epoch_ids:",
        "if False:",
        "tests/log/test_other_histories.py::test_a_log_replaced_at_any_call_of_a_reader",
    ),
    Mutation(
        "a repaired copy has the ids of its log",
        "imap_wal/repair/node_plan.py",
        "if self.shared is None:\n            return epochs",
        "if True:\n            return epochs",
        "tests/cli/test_other_histories.py::test_a_repaired_copy_refuses_what_it_has_changed",
    ),
    Mutation(
        "a task does not notice that its node was forgotten",
        "imap_wal/read/cluster.py",
        "if planned and directory != planned:",
        "if False:",
        "tests/spark/test_forgotten_nodes.py::test_a_planned_read_does_not_leave_out_a_forgotten_node",
    ),
    Mutation(
        "a stream continues without a forgotten node",
        "pyspark_imap_wal/stream.py",
        "if read < end and not self._options.partial:",
        "if False:",
        "tests/spark/test_forgotten_nodes.py::test_a_stream_misses_no_change_of_a_forgotten_node",
    ),
    Mutation(
        "a node is forgotten before its registered readers have read it",
        "imap_wal/agent/membership/forget_node.py",
        "    if not unfinished:\n",
        "    if True:\n",
        "tests/spark/test_forgotten_nodes.py::test_a_registered_reader_prevents_forgetting_a_node",
    ),
    Mutation(
        "a writer on objects continues in an older copy of its prefix",
        "imap_wal/write/node_log.py",
        "if missing and missing[-1] > self",
        "if False and missing[-1] > self",
        "tests/actors/test_replaced_folders.py::test_a_replaced_prefix_is_noticed_at_the_next_checkpoint",
    ),
    Mutation(
        "a repaired copy forgets the epochs that an older manifest does not have",
        "imap_wal/repair/node_plan.py",
        "        if header.epoch_id not in epoch_ids:",
        "        if epoch_ids and header.epoch_id not in epoch_ids:",
        "tests/cli/test_repair_metadata.py::test_a_node_of_an_older_backup_is_repaired",
    ),
    Mutation(
        "the next open of a repaired log forgets the former id of an epoch",
        "imap_wal/manifest/epochs.py",
        "[epoch for epoch in epochs if epoch.number in remaining]",
        "[epoch for epoch in epochs if epoch.end is None or epoch.end >= removed]",
        "tests/cli/test_repair_histories.py::test_a_pruned_repaired_log_opens_again",
    ),
    Mutation(
        "opens without entries let the ids of former epochs be forgotten",
        "imap_wal/manifest/epochs.py",
        "(each == opened, each in with_entries, each)",
        "(each == opened, each)",
        "tests/log/test_other_histories.py::test_opens_without_entries_leave_positions_readable",
    ),
    Mutation(
        "positions that an open gave up are still of the log",
        "imap_wal/manifest/epochs.py",
        "(*(replace(epoch, end=min(epoch.end or end, end)) for epoch in former), *epochs[-1:])",
        "(*former, *epochs[-1:])",
        "tests/log/test_other_histories.py::test_a_position_that_an_open_gave_up_is_refused[False]",
    ),
    Mutation(
        "a follower reads on in the segment of another copy",
        "imap_wal/embedded/read_only.py",
        "if merge is None or merge.is_replaced():",
        "if merge is None:",
        "tests/durable/test_read_only.py::"
        "test_a_follower_notices_that_its_log_was_replaced[LocalStore-shorter]",
    ),
    Mutation(
        "a merge continues in another history",
        "imap_wal/read/merge.py",
        "if self._is_of_other_history(state):",
        "if False:",
        "tests/durable/test_read_only.py::"
        "test_a_follower_notices_that_its_log_was_replaced[LocalStore-longer]",
    ),
    Mutation(
        "a refused stream publishes how far it has read",
        "pyspark_imap_wal/stream.py",
        "            self._demand_same_logs(state, offset)\n            registered",
        "            registered",
        "tests/spark/test_other_histories.py::test_a_refused_stream_publishes_no_position[False]",
    ),
    Mutation(
        "a read of a removed file takes its log for another one",
        "imap_wal/manifest/epochs.py",
        "    if position <= removed and not ids(epochs, position.epoch):\n",
        "    if False:\n",
        "tests/restore/test_removed_logs.py"
        "::test_a_log_that_forgot_an_epoch_is_not_another_one[True]",
    ),
    Mutation(
        "an open log does not know what was removed before it",
        "imap_wal/write/node_log.py",
        "self._epochs, self._removed = manifest.epochs, manifest.removed\n",
        "self._epochs, self._removed = manifest.epochs, Position(0, 0, 0, 0)\n",
        "tests/durable/test_watch.py::test_an_old_position_is_gone_and_of_no_other_history",
    ),
    Mutation(
        "a task reads what another copy has in place of its file",
        "imap_wal/read/cluster.py",
        "        demand_same(present.epochs, scan.epochs, read_to, name, present.removed)\n",
        "",
        "tests/spark/test_other_histories.py::"
        "test_a_planned_read_has_no_rows_of_another_history[more0-True]",
    ),
    Mutation(
        "dump leaves out a node that was forgotten meanwhile",
        "rewrite_cli/commands/reading/dump.py",
        "            demand_same_log(node, *registered)\n",
        "",
        "tests/cli/test_forgotten_names.py::"
        "test_dump_misses_no_entry_of_a_node_forgotten_meanwhile",
    ),
    Mutation(
        "images start at a position of another history",
        "pyspark_imap_wal/changes/batch.py",
        "for places in (start or {}, end):",
        "for places in ({**(start or {}), **end},):",
        "tests/spark/test_other_histories.py::test_images_start_at_no_position_of_another_history",
    ),
    Mutation(
        "positions in lost segments are still of the log",
        "imap_wal/write/registration.py",
        "            epochs=lost_from(before.epochs, before.archived[1] + 1),\n",
        "",
        "tests/log/test_other_histories.py::test_given_up_positions_are_refused_after_any_crash[lost]",
    ),
    Mutation(
        "what the logs have of a damaged snapshot does not count in a repaired copy",
        "imap_wal/repair/cluster_manifest.py",
        "if former is not None or not snapshot.dropped:",
        "if False:",
        "tests/cli/test_repair_histories.py::test_what_the_logs_have_of_a_damaged_snapshot_counts",
    ),
    Mutation(
        "a repair calls a segment of another copy void",
        "imap_wal/repair/node_segments.py",
        "if epoch_ids and header.epoch_id not in epoch_ids:",
        "if False:",
        "tests/cli/test_repair_metadata.py::test_a_segment_of_another_copy_is_not_void",
    ),
    Mutation(
        "a mark covers the entries of another copy",
        "imap_wal/manifest/cluster.py",
        "return position if end is None else min(position, end)",
        "return position",
        OF_ANOTHER,
    ),
    Mutation(
        "a record of an open is known by the number of its epoch",
        "imap_wal/manifest/older.py",
        "epoch_id not in ids(manifest.epochs, epoch)",
        "not ids(manifest.epochs, epoch)",
        "tests/restore/test_marks_of_copies.py::"
        "test_a_folder_of_another_copy_is_refused_without_snapshots",
    ),
    Mutation(
        "opens that are killed let the epoch be forgotten that is recorded",
        "imap_wal/manifest/epochs.py",
        "(each == opened, each in with_entries, each)",
        "(each in with_entries, each)",
        "tests/restore/test_marks_of_copies.py::test_opens_killed_at_any_call_open_again",
    ),
    Mutation(
        "a rewrite does not record the epochs that its marks are of",
        "imap_wal/rewrite/publish.py",
        ".with_epochs(covered)",
        ".with_epochs([])",
        OF_ANOTHER,
    ),
    Mutation(
        "a drop does not record the epochs that its marks are of",
        "imap_wal/rewrite/drop.py",
        ".with_epochs(logs)",
        ".with_epochs([])",
        "tests/restore/test_marks_of_copies.py::test_the_mark_of_a_drop_is_of_one_copy",
    ),
    Mutation(
        "a drop takes over the mark of a lost log",
        "imap_wal/rewrite/drop.py",
        "reached = manifest.reach_in(node_state.manifest)(covered.get(node))",
        "reached = covered[node].position if node in covered else START",
        "tests/restore/test_marks_of_copies.py::test_a_drop_keeps_no_mark_of_a_lost_log",
    ),
    Mutation(
        "a repair keeps the cut of another copy",
        "imap_wal/repair/node.py",
        "return END if self.other_copy else self.position(place)",
        "return self.position(place)",
        "tests/restore/test_marks_of_copies.py::test_a_cut_of_another_copy_makes_nothing_void",
    ),
    Mutation(
        "a repair does not look for former snapshots",
        "imap_wal/repair/snapshots.py",
        "former = former_with(self._context, self._sources, name, snapshot, lost)",
        "former = None",
        f"{FORMER}::test_only_changes_since_the_former_snapshot_are_lost",
    ),
    Mutation(
        "a repair takes all keys of a former snapshot",
        "imap_wal/repair/former.py",
        "return Former(snapshot, versions, source.losses, tuple(files), spans)",
        "return Former(snapshot, versions, source.losses, tuple(files), ((b'', None),))",
        f"{FORMER}::test_a_deleted_key_of_a_whole_file_stays_deleted",
    ),
    Mutation(
        "a repair takes a former snapshot of a map that was dropped since",
        "imap_wal/repair/former.py",
        "if former.dropped == newest.dropped:",
        "if True:",
        f"{FORMER}::test_a_map_that_was_dropped_since_stays_dropped",
    ),
    Mutation(
        "a repair says that nothing is lost although a prune removed the log",
        "imap_wal/repair/former.py",
        "if start < end:",
        "if False:",
        f"{FORMER}::test_only_changes_since_the_former_snapshot_are_lost",
    ),
    Mutation(
        "a repair says that nothing is lost although only a forgotten log had it",
        "imap_wal/repair/former.py",
        "            if first < last:\n",
        "            if False:\n",
        f"{FORMER}::test_changes_of_a_forgotten_log_are_reported_as_lost[changed since]",
    ),
    Mutation(
        "a repair says that a log is lost which was forgotten before the former snapshot",
        "imap_wal/repair/former.py",
        "losses = now.losses.get(node, 0) - self.losses.get(node, 0)",
        "losses = now.losses.get(node, 0)",
        f"{FORMER}::test_changes_of_a_forgotten_log_are_reported_as_lost[covered twice]",
    ),
    Mutation(
        "a repaired copy keeps the mark of an epoch that its log forgets",
        "imap_wal/repair/cluster_manifest.py",
        "                if self.older and fork(former, manifest.epochs) is None:\n",
        "                if not nodes:\n",
        "tests/restore/test_marks_of_copies.py::"
        "test_a_repaired_copy_opens_if_a_lost_manifest_pruned",
    ),
)
