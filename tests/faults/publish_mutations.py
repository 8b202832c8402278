"""Deliberate defects in what is published as a table."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_PUBLICATION, _LOG = "imap_wal/publish/publication.py", "imap_wal/publish/delta_log.py"
_ICEBERG, _FILES = "imap_wal/publish/iceberg.py", "imap_wal/publish/snapshot_files.py"
_TESTS, _OF_ICEBERG = "tests/publish/test_delta.py", "tests/publish/test_iceberg.py"
_PROCESSES = "tests/publish/test_several_processes.py"
_FOLLOWING = "imap_wal/rewrite/following.py"
_OF_FOLLOWING = "tests/publish/test_following.py"

OF_PUBLISHED = (
    Mutation(
        "a snapshot that is older than the table is published, or refused as a copy",
        _PUBLICATION,
        "        former = table.read()\n"
        "        manifest = log.manifest()  # after the table: so it is not older than what was "
        "published\n",
        "        manifest = log.manifest()\n        former = table.read()\n",
        f"{_PROCESSES}::test_two_publications_at_once_make_one_version_each",
    ),
    Mutation(
        "a snapshot that was replaced before its files were kept is published",
        _PUBLICATION,
        "now is None or now.generation != snapshot.generation",
        "now is None",
        f"{_PROCESSES}::test_a_publication_beside_a_prune_names_no_missing_file",
    ),
    Mutation(
        "tombstones are rows of a table",
        _FILES,
        "        return self.tombstones > 0\n",
        "        return False\n",
        f"{_TESTS}::test_tombstones_are_no_rows",
    ),
    Mutation(
        "a published table keeps the log above it",
        "imap_wal/manifest/reader_manifest.py",
        "        if self.files_only:\n",
        "        if not self:\n",
        f"{_TESTS}::test_files_of_the_last_published_snapshots_stay",
    ),
    Mutation(
        "a commit of another program is taken as ours",
        _LOG,
        "        if not engine.startswith(ENGINE):\n",
        "        if not actions:\n",
        f"{_TESTS}::test_a_table_that_others_changed_is_refused",
    ),
    Mutation(
        "a newer snapshot that is only proposed displaces a published one",
        _PUBLICATION,
        "        return (*[*old, *now][-keep:], *newer)\n",
        "        return (*old, *now, *newer)[-keep:]\n",
        f"{_PROCESSES}::test_a_proposed_snapshot_displaces_no_published_one",
    ),
    Mutation(
        "a published snapshot is not kept any more before the next one is published",
        _PUBLICATION,
        "                continue  # the proposal stays: another process may commit it, or has "
        "done so\n",
        "                reader.keep(lambda bases: bases[:-1], DAY_MS, files_only=True)\n"
        "                continue\n",
        f"{_PROCESSES}::test_a_published_snapshot_stays_until_the_next_one_is_published",
    ),
    Mutation(
        "copies of a snapshot that another process publishes now are deleted",
        _PUBLICATION,
        "    log.store.discard_all(",
        '    copies = [file.path for file in log.store.list(f"{folder}/{COPIES}")]\n'
        "    log.store.discard_all(",
        f"{_PROCESSES}::test_two_publications_at_once_make_one_version_each",
    ),
    Mutation(
        "the files of a published table are deleted after a drop of its map",
        "imap_wal/manifest/reader_manifest.py",
        "                if self.files_only or now is None or now.dropped == snapshot.dropped:\n",
        "                if now is None or now.dropped == snapshot.dropped:\n",
        f"{_TESTS}::test_a_table_has_the_live_entries_of_each_rewrite",
    ),
    Mutation(
        "a published table is asked to read a log",
        "imap_wal/manifest/reader_manifest.py",
        "        return self.files_only or self.positions",
        "        return self.positions",
        f"{_TESTS}::test_a_table_is_no_query_that_may_be_gone",
    ),
    Mutation(
        "two clears are keys that two nodes claim",
        _FILES,
        "batch[KEY].filter(pc.invert(are_clears(batch)))",
        "batch[KEY]",
        f"{_TESTS}::test_clears_are_not_claimed_by_two_nodes",
    ),
    Mutation(
        "a commit whose answer was lost is not found",
        _LOG,
        "                if self._store.read(path) != content:\n",
        "                if self._store.read(path):\n",
        f"{_PROCESSES}::test_a_commit_whose_answer_is_lost_is_found",
    ),
    Mutation(
        "a commit that no reader sees counts as published",
        _LOG,
        "        if newest > state.version:",
        "        if not content:",
        f"{_PROCESSES}::test_a_commit_below_the_newest_versions_is_repeated",
    ),
    Mutation(
        "a snapshot that is not current any more is kept as one that was published",
        _PUBLICATION,
        "if generation > newest else bases",
        "if new not in bases else bases",
        f"{_PROCESSES}::test_two_publications_at_once_make_one_version_each",
    ),
    Mutation(
        "a snapshot whose marks have changed is kept once more",
        _PUBLICATION,
        "if generation > newest else bases",
        "if generation >= newest else bases",
        f"{_TESTS}::test_rewrites_of_other_maps_displace_no_version",
    ),
    Mutation(
        "a copy without tombstones counts as a file of a rewrite",
        "imap_wal/layout.py",
        'r"[^/]+/[^/]+/snapshot/([^/]+)/([0-9]{8,})/[^/]+',
        'r".+/([^/]+)/([0-9]{8,})[^/]*[/-][^/]+',
        f"{_TESTS}::test_tombstones_are_no_rows",
    ),
    Mutation(
        "copies that another table of the map needs are deleted",
        _PUBLICATION,
        "        for base in manifest.bases\n",
        "        for base in manifest.bases[:0]\n",
        f"{_OF_ICEBERG}::test_copies_stay_while_any_table_of_the_map_needs_them",
    ),
    Mutation(
        "programs of Iceberg may delete files of the log",
        _ICEBERG,
        '"gc.enabled": "false"',
        '"gc.enabled": "true"',
        f"{_OF_ICEBERG}::test_a_table_has_the_live_entries_of_each_rewrite",
    ),
    Mutation(
        "an Iceberg table of another map is published to",
        _ICEBERG,
        "        if of != self._map:\n",
        "        if not of:\n",
        f"{_OF_ICEBERG}::test_tables_that_are_not_of_this_map_are_refused",
    ),
    Mutation(
        "an Iceberg commit whose answer was lost is not found",
        _ICEBERG,
        "            if not any(unique.items() <= _said(snapshot).items() for snapshot in made):\n",
        "            if made:\n",
        f"{_OF_ICEBERG}::test_a_commit_whose_answer_is_lost_is_found",
    ),
    Mutation(
        "an Iceberg table has snapshots whose files are gone",
        _ICEBERG,
        "[:-keep]",
        "[:0]",
        f"{_OF_ICEBERG}::test_versions_that_are_kept_stay_readable",
    ),
    Mutation(
        "a commit to Iceberg that another process was quicker with is an error",
        _ICEBERG,
        "isinstance(error, exceptions.CommitFailedException)",
        "isinstance(error, exceptions.NoSuchTableError)",
        f"{_OF_ICEBERG}::test_two_publications_at_once_make_one_version",
    ),
    Mutation(
        "a table that cannot be published ends the rewrite",
        "imap_wal/publish/recorded.py",
        "            except Exception as error:  # noqa: BLE001  it is in the report\n",
        "            except ZeroDivisionError as error:\n",
        "tests/publish/test_each_rewrite.py::test_a_table_that_cannot_be_published_ends_no_rewrite",
    ),
    Mutation(
        "a rewrite publishes tables of maps that it did not write",
        "imap_wal/publish/recorded.py",
        "tables.items() if name in maps else ():",
        "tables.items():",
        "tests/publish/test_each_rewrite.py::test_a_recorded_table_is_published_by_each_rewrite",
    ),
    Mutation(
        "an Iceberg table that others know by the same name loses its files",
        _ICEBERG,
        'self._table.metadata.table_uuid.hex[:8] if self._table else ""',
        '""',
        f"{_OF_ICEBERG}::test_tables_with_one_name_keep_their_own_files",
    ),
    Mutation(
        "a rewrite whose catalog is lost begins a second table",
        _PUBLICATION,
        "                if not again:\n",
        "                if again is None:\n",
        f"{_OF_ICEBERG}::test_a_rewrite_makes_no_second_table",
    ),
    Mutation(
        "manifests of removed files stay in each later snapshot",
        _ICEBERG,
        "            if manifest.has_added_files()\n",
        "            if True\n",
        f"{_OF_ICEBERG}::test_manifests_of_removed_files_do_not_accumulate",
    ),
    Mutation(
        "a tag in an Iceberg table keeps its old snapshots",
        _ICEBERG,
        " if one.snapshot_id not in named]",
        "]",
        f"{_OF_ICEBERG}::test_a_tag_in_the_table_ends_no_publication",
    ),
    Mutation(
        "copies that are lost count as files of a table",
        _FILES,
        "    return copies - there\n",
        "    return copies - there - copies\n",
        f"{_OF_ICEBERG}::test_copies_that_were_deleted_are_made_again",
    ),
    Mutation(
        "a table has what a restored log has lost",
        _PUBLICATION,
        '    return not {source_of("", path) for path in former.files} <= files\n',
        "    return not files\n",
        f"{_OF_ICEBERG}::test_another_history_with_the_same_generation_is_refused",
    ),
    Mutation(
        "a follower publishes although nothing has changed",
        _FOLLOWING,
        "        self._is_published = True\n",
        "",
        f"{_OF_FOLLOWING}::test_a_round_publishes_what_has_changed",
    ),
    Mutation(
        "a follower forgets a publication that failed after its rewrite",
        _FOLLOWING,
        "                self._is_published = False\n",
        "                self._is_published = True\n",
        f"{_OF_FOLLOWING}::test_a_round_after_an_error_does_what_was_left",
    ),
    Mutation(
        "a follower keeps the files of all versions",
        _FOLLOWING,
        "            remove_former(self._log)\n",
        "",
        f"{_OF_FOLLOWING}::test_former_files_are_removed_with_their_versions",
    ),
    Mutation(
        "a follower makes a table again that was dropped",
        _FOLLOWING,
        "        if name in self._made and not table.read().generation:\n",
        "        if False:\n",
        f"{_OF_FOLLOWING}::test_a_dropped_table_is_not_made_again",
    ),
    Mutation(
        "a follower makes an empty log where one was",
        _FOLLOWING,
        "        if not ends:",
        "        if False:",
        f"{_OF_FOLLOWING}::test_the_command_continues_after_an_error",
    ),
    Mutation(
        "a follower does not see a drop or another log",
        _FOLLOWING,
        "        is_same = now == self._snapshots\n",
        "        is_same = self._ends is not None\n",
        f"{_OF_FOLLOWING}::test_a_map_that_is_dropped_leaves_an_empty_table",
    ),
    Mutation(
        "a rewrite leaves segment snapshots, which no table can have",
        "imap_wal/rewrite/plan.py",
        "        segments = not by_rows and any(map(is_segment, snapshot.paths))\n",
        "        segments = False\n",
        f"{_OF_FOLLOWING}::test_a_snapshot_without_parquet_is_published",
    ),
    Mutation(
        "a store with published tables closes with a segment snapshot",
        "imap_wal/rewrite/compaction.py",
        "            needs_parquet = manifest.decoded or manifest.tables\n",
        "            needs_parquet = manifest.decoded\n",
        "tests/publish/test_each_rewrite.py::test_a_tiny_log_that_is_closed_publishes",
    ),
    Mutation(
        "metadata of removed Iceberg versions stays",
        _ICEBERG,
        '            delete_files(table.io, gone - kept, "manifest")\n',
        "            pass\n",
        f"{_OF_ICEBERG}::test_metadata_of_removed_versions_is_deleted",
    ),
    Mutation(
        "a follower rewrites again because a publication failed",
        _FOLLOWING,
        "            if not is_same:\n",
        "            if True:\n",
        f"{_OF_FOLLOWING}::test_a_round_after_an_error_does_what_was_left",
    ),
)
