"""Deliberate defects of what a valid entry is, and of how it is read and shown. See
`tests.faults.mutations`."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_RULES = "tests/unit/test_rules.py::test_rows_and_columns_agree_over_random_histories"

_IMPORT = "tests/cli/test_import_seatunnel.py::test_the_newest_whole_change_of_each_key_is_imported"

OF_ENTRIES = (
    Mutation(
        "a deletion in a batch of upserts is not noticed",
        "imap_wal/entry.py",
        "                if not any(map(itemgetter(DELETED), upserts)):\n",
        "                if upserts:\n",
        "tests/unit/test_entry.py::test_batches_of_a_file_are_decoded_as_alone",
    ),
    Mutation(
        "an import reads a pickle that needs any class",
        "rewrite_cli/sources/pickles.py",
        '            raise NeedsClass(f"it needs the class {module}.{name}") from None\n',
        "            return super().find_class(module, name)\n",
        "tests/cli/test_import.py::test_a_hostile_pickle_runs_nothing",
    ),
    Mutation(
        "an import publishes the rest although entries were refused",
        "rewrite_cli/commands/copies/import_.py",
        "                    if skip_refused or not result.refusals:\n"
        "                        rows.add(name, batch)\n"
        "                published = skip_refused or not result.refusals\n",
        "                    rows.add(name, batch)\n                published = True\n",
        "tests/cli/test_import.py::test_a_hostile_pickle_runs_nothing",
    ),
    Mutation(
        "of two changes in one millisecond, an import takes the first",
        "rewrite_cli/sources/newest_changes.py",
        "        elif change.timestamp_ms < former[3]:\n",
        "        elif change.timestamp_ms <= former[3]:\n",
        _IMPORT,
    ),
    Mutation(
        "an import brings back keys that SeaTunnel deleted",
        "rewrite_cli/sources/newest_changes.py",
        "    WHERE NOT deleted ORDER BY",
        "    WHERE 1 ORDER BY",
        _IMPORT,
    ),
    Mutation(
        "an import takes what was damaged for the end of a file",
        "rewrite_cli/sources/seatunnel_record.py",
        "        if not any(head) and _is_zero(file):\n",
        "        if not any(head):\n",
        "tests/cli/test_import_seatunnel.py::test_what_is_not_damaged_is_imported_if_asked",
    ),
    Mutation(
        "an import loses what follows a damaged record",
        "rewrite_cli/sources/seatunnel_folder.py",
        "                    place = next_place(data, error.position)\n",
        "                    place = None\n",
        "tests/cli/test_import_seatunnel.py::test_what_is_not_damaged_is_imported_if_asked",
    ),
    Mutation(
        "a backfill of another class is added to a map",
        "pyspark_imap_wal/backfill_writer.py",
        "    if {*known_classes} <= {class_label}:\n",
        "    if True:\n",
        "tests/spark/test_backfill.py::test_a_backfill_of_another_class_is_refused",
    ),
    Mutation(
        "tasks of a backfill with two classes are published",
        "pyspark_imap_wal/backfill_writer.py",
        "            self._demand_one_class(log, [message.classes for message in written])\n",
        "",
        "tests/spark/test_backfill.py::test_tasks_of_two_classes_publish_nothing",
    ),
    Mutation(
        "a map of two classes is read with one of them",
        "imap_wal/embedded/store.py",
        "if isinstance(known, Mixed) and state.values:",
        "if False:",
        "tests/spark/test_backfill.py::test_a_map_of_two_classes_is_refused",
    ),
    Mutation(
        "a backfill takes rows that are too large",
        "imap_wal/rules/valid.py",
        "    if largest > bytes_max:",
        "    if False:",
        "tests/unit/test_valid.py::test_columns_are_valid_exactly_if_all_rows_are",
    ),
    Mutation(
        "columns expire a millisecond later than rows",
        "imap_wal/rules/alive.py",
        "pc.less_equal(expires, now_ms)",
        "pc.less(expires, now_ms)",
        "tests/unit/test_valid.py::test_rows_and_columns_are_alive_alike",
    ),
    Mutation(
        "the entry at a low-water mark counts in columns",
        "imap_wal/rules/counts.py",
        "        greater = pc.greater(column, value)",
        "        greater = pc.greater_equal(column, value)",
        _RULES,
    ),
    Mutation(
        "by columns, the copies of a change are claims of two nodes",
        "imap_wal/rules/newer.py",
        "    if not shared.true_count:",
        "    if True:",
        _RULES,
    ),
    Mutation(
        "by columns, a tombstone whose copy may come later is dropped",
        "imap_wal/rules/dropped.py",
        'pc.invert(pc.or_(column["late"], copies))',
        'pc.invert(column["late"])',
        _RULES,
    ),
    Mutation(
        'a dict with keys 1 and "1" loses an item in JSON',
        "imap_wal/encoder.py",
        "    if len(shown) == count:\n",
        "    if True:\n",
        "tests/cli/test_any_entry.py::test_a_lossy_conversion_is_reported",
    ),
    Mutation(
        "a lone surrogate is written as it is",
        "imap_wal/encoder.py",
        '        return "".join("\\ufffd" if',
        '        return words or "".join("\\ufffd" if',
        "tests/cli/test_any_entry.py::test_a_lone_surrogate_ends_no_decoded_read",
    ),
    Mutation(
        "a lossy conversion is not counted",
        "rewrite_cli/entries/losses.py",
        "self._counts[loss] += 1",
        "self._counts[loss] += 0",
        "tests/cli/test_any_entry.py::test_a_lossy_conversion_is_reported",
    ),
    Mutation(
        "two keys have one text",
        "imap_wal/encoder.py",
        "    if not inexact and _is_exact(row, key):\n",
        "    if not inexact:\n",
        "tests/cli/test_any_entry.py::test_two_keys_never_have_one_text",
    ),
    Mutation(
        "a key without a text is a missing key",
        "rewrite_cli/entries/keys.py",
        "            self.unreadable.add(row[KEY_CLASS])\n",
        "            pass\n",
        "tests/cli/test_any_entry.py::test_a_key_without_text_is_no_missing_key",
    ),
    Mutation(
        "a reader warns of a torn commit at its first look",
        "imap_wal/read/scan.py",
        "pause = None if scan.next_path else next(pauses, None)",
        "pause = None",
        "tests/restore/test_late_bytes.py::test_a_frame_that_is_whole_later_is_no_torn_commit",
    ),
    Mutation(
        "one packer for a value and for what its methods write",
        "imap_wal/serializer.py",
        "_thread.level, _thread.pack = level + 1, _packer_of(level + 1)",
        "_thread.level = level + 1",
        "tests/durable/test_valid_entries.py::test_a_map_used_while_serialising_damages_no_value",
    ),
    Mutation(
        "a dict has a key that no reader takes as one",
        "imap_wal/serializer.py",
        "if not (_is_same_key(value, plain) or _thread.keys_are_checked):",
        "if False:",
        "tests/durable/test_valid_entries.py::"
        "test_a_refused_value_is_named_with_its_place[list as key]",
    ),
    Mutation(
        "a key is stored as one that a dict tells apart",
        "imap_wal/serializer.py",
        "    return type(key) is type(plain) or (plain == key and _is_same_key(key, plain))\n",
        "    return True\n",
        "tests/durable/test_valid_entries.py::test_a_key_without_one_form_is_refused",
    ),
    Mutation(
        "an empty map changes its class while a change is under way",
        "imap_wal/embedded/store.py",
        "            if state.opened:\n",
        "            if False:\n",
        "tests/durable/test_valid_entries.py::test_a_map_keeps_its_class_while_it_is_open",
    ),
    Mutation(
        "a copy can be opened before it is whole",
        "imap_wal/backup/unfinished.py",
        "if not layout.is_cluster_manifest(path):",
        "if True:",
        "tests/cli/test_unfinished_restore.py::test_a_copy_that_did_not_end_cannot_be_opened",
    ),
    Mutation(
        "a typed value is not read before it is accepted",
        "imap_wal/typed.py",
        "            if self._decode(data) == value:\n",
        "            if True:\n",
        "tests/durable/test_typed_maps.py::test_any_typed_entry_is_read_equal_or_refused",
    ),
    Mutation(
        "a map with types takes entries of other types",
        "imap_wal/typed.py",
        'self.name = name or f"{TYPED}{written(key)}, {written(value)}]"',
        'self.name = name or f"{TYPED}typed]"',
        "tests/durable/test_classes_of_maps.py::test_a_map_of_other_types_is_refused_unless_named",
    ),
    Mutation(
        "equal moments of two zones are two keys",
        "imap_wal/serializer.py",
        "    utc = key.astimezone(UTC)\n",
        "    utc = key\n",
        "tests/durable/test_valid_entries.py::test_equal_keys_are_one_key",
    ),
    Mutation(
        "the items of a set are in any order in a key",
        "imap_wal/extension.py",
        "    ordered = sorted(items)\n",
        "    ordered = list(items)\n",
        "tests/unit/test_extension.py::test_the_bytes_of_a_key_are_golden",
    ),
    Mutation(
        "an extension that is not valid ends the read",
        "imap_wal/extension.py",
        "        except Exception:  # noqa: BLE001\n            return ExtType(code, data)\n",
        "        except ZeroDivisionError:\n            return ExtType(code, data)\n",
        "tests/unit/test_extension.py::test_what_is_no_valid_extension_is_returned_as_it_is",
    ),
    Mutation(
        "twice as many nested extensions are decoded",
        "imap_wal/extension.py",
        "levels: int = LEVELS_MAX)",
        "levels: int = 2 * LEVELS_MAX)",
        "tests/unit/test_extension.py::test_endless_levels_end_no_read",
    ),
)
