"""Deliberate defects in what is published as a table."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_DELTA, _LOG = "imap_wal/publish/delta.py", "imap_wal/publish/delta_log.py"
_TESTS = "tests/publish/test_delta.py"

OF_PUBLISHED = (
    Mutation(
        "a snapshot that is older than the table is published, or refused as a copy",
        _DELTA,
        "        table = delta.read()\n"
        "        manifest = log.manifest()  # after the table: so it is not older than what was "
        "published\n",
        "        manifest = log.manifest()\n        table = delta.read()\n",
        f"{_TESTS}::test_two_publications_at_once_make_one_version_each",
    ),
    Mutation(
        "a snapshot that was replaced before its files were kept is published",
        _DELTA,
        "now is None or now.generation != snapshot.generation",
        "now is None",
        f"{_TESTS}::test_a_publication_beside_a_prune_names_no_missing_file",
    ),
    Mutation(
        "tombstones are rows of a table",
        _DELTA,
        "            if content.tombstones and content.rows:\n",
        "            if False:\n",
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
        f"{_TESTS}::test_a_proposed_snapshot_displaces_no_published_one",
    ),
    Mutation(
        "a published snapshot is not kept any more before the next one is published",
        _DELTA,
        "                continue  # it stays: another process may have published it, or may do so "
        "now\n",
        "                reader.keep(without_bases([base]), DAY_MS, files_only=True)\n"
        "                continue\n",
        f"{_TESTS}::test_a_published_snapshot_stays_until_the_next_one_is_published",
    ),
)
