"""Deliberate defects in what is published as a table."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_DELTA, _LOG = "imap_wal/publish/delta.py", "imap_wal/publish/delta_log.py"
_TESTS = "tests/publish/test_delta.py"
_PROCESSES = "tests/publish/test_several_processes.py"

OF_PUBLISHED = (
    Mutation(
        "a snapshot that is older than the table is published, or refused as a copy",
        _DELTA,
        "        table = delta.read()\n"
        "        manifest = log.manifest()  # after the table: so it is not older than what was "
        "published\n",
        "        manifest = log.manifest()\n        table = delta.read()\n",
        f"{_PROCESSES}::test_two_publications_at_once_make_one_version_each",
    ),
    Mutation(
        "a snapshot that was replaced before its files were kept is published",
        _DELTA,
        "now is None or now.generation != snapshot.generation",
        "now is None",
        f"{_PROCESSES}::test_a_publication_beside_a_prune_names_no_missing_file",
    ),
    Mutation(
        "tombstones are rows of a table",
        _DELTA,
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
        _DELTA,
        "        return (*[*old, *now][-keep:], *newer)\n",
        "        return (*old, *now, *newer)[-keep:]\n",
        f"{_PROCESSES}::test_a_proposed_snapshot_displaces_no_published_one",
    ),
    Mutation(
        "a published snapshot is not kept any more before the next one is published",
        _DELTA,
        "                continue  # it stays: another process may have published it, or may do so "
        "now\n",
        "                reader.keep(lambda bases: bases[:-1], DAY_MS, files_only=True)\n"
        "                continue\n",
        f"{_PROCESSES}::test_a_published_snapshot_stays_until_the_next_one_is_published",
    ),
    Mutation(
        "copies of a snapshot that another process publishes now are deleted",
        _DELTA,
        "    bases = reader.keep(change, DAY_MS, files_only=True)\n",
        "    bases = reader.keep(change, DAY_MS, files_only=True)\n"
        '    copies = [file.path for file in log.store.list(f"{folder}/{COPIES}")]\n',
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
        _DELTA,
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
        _DELTA,
        "if generation > newest else bases",
        "if new not in bases else bases",
        f"{_PROCESSES}::test_two_publications_at_once_make_one_version_each",
    ),
    Mutation(
        "a snapshot whose marks have changed is kept once more",
        _DELTA,
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
)
