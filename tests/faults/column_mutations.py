"""Deliberate defects of typed columns, and of reads as a table."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_TABLES = "tests/durable/test_tables.py"
_COLUMNS = "tests/unit/test_typed_columns.py"

OF_COLUMNS = (
    Mutation(
        "an int too large for its column reaches Arrow, and ends the query",
        "imap_wal/sql/types.py",
        "    hint = Annotated[int, msgspec.Meta(ge=low, le=high)]\n",
        "    hint = int\n",
        f"{_COLUMNS}::test_a_misfit_is_rescued_whole_or_named",
    ),
    Mutation(
        "what msgspec cannot decode is not tried by the decoder",
        "imap_wal/sql/columns.py",
        "        value = self._decoder.value(row)\n        try:\n",
        '        value: Any = Opaque(row[VALUE_CLASS], row[VALUE] or b"")\n        try:\n',
        f"{_COLUMNS}::test_what_fits_by_its_text_or_shape",
    ),
    Mutation(
        "fields that msgspec does not check are taken as they are",
        "imap_wal/sql/columns.py",
        "                setattr(value, place, fit(part))\n",
        "                pass\n",
        f"{_COLUMNS}::test_a_misfit_is_rescued_whole_or_named",
    ),
    Mutation(
        "a misfit is neither in its columns nor rescued",
        "imap_wal/sql/columns.py",
        "            return self._line(), json_of(value)\n",
        "            return self._line(), None\n",
        f"{_COLUMNS}::test_every_value_comes_back_typed_or_rescued",
    ),
    Mutation(
        "a set has another order in each process",
        "imap_wal/sql/types.py",
        "            value = sorted(value, key=json_of)\n",
        "            value = sorted(value, key=json_of, reverse=True)\n",
        f"{_COLUMNS}::test_what_fits_by_its_text_or_shape",
    ),
    Mutation(
        "a batch of a table may have any size",
        "imap_wal/table.py",
        "                yield shape.of_batch(batch.slice(start, asked.batch_rows))\n",
        "                yield shape.of_batch(batch.slice(start))\n",
        f"{_TABLES}::test_batches_have_at_most_the_given_rows",
    ),
    Mutation(
        "a table as of a moment has later entries",
        "imap_wal/table.py",
        "            newest_ms=asked.as_of_ms,\n",
        "",
        f"{_TABLES}::test_each_read_has_the_entries_of_its_time",
    ),
    Mutation(
        "a proposal is too narrow for a later value",
        "imap_wal/sql/proposal.py",
        '    if kinds == {"bigint", "double"}:\n        return _DOUBLE\n',
        '    if kinds == {"bigint", "double"}:\n        return _BIGINT\n',
        f"{_COLUMNS}::test_a_proposal_is_the_narrowest_schema",
    ),
    Mutation(
        "SQL does not say how many values do not fit",
        "rewrite_cli/entries/sql_columns.py",
        "        changes[0].losses.misfit(changes[0].row[MAP], cell[0], why)\n",
        "        pass\n",
        "tests/cli/test_schema.py::test_rescued_values_are_counted_and_named",
    ),
    Mutation(
        "a schema hides what tells two changes apart",
        "rewrite_cli/entries/tables.py",
        "        if column.of is None and column.name.lower() in _ONE_CHANGE:\n",
        "        if False:\n",
        "tests/cli/test_schema.py::test_sql_has_typed_columns",
    ),
    Mutation(
        "a filter on a typed column removes rows by the log's column",
        "pyspark_imap_wal/filters.py",
        "            if _attribute(pushed) in self.hidden:\n",
        "            if False:\n",
        "tests/spark/test_schemas.py::test_a_filter_on_a_typed_column_hides_no_row",
    ),
    Mutation(
        "a filter on the text of a key does not find a number of Java",
        "imap_wal/encoder.py",
        '    for form, kinds in (("bhiq", int), ("fd", float)):\n',
        '    for form, kinds in (("biq", int), ("fd", float)):\n',
        "tests/cli/test_any_entry.py::test_a_java_key_is_found_by_its_text",
    ),
    Mutation(
        "a read of one key has others",
        "pyspark_imap_wal/filters.py",
        '        self._demand("key", pc.field("key").isin(pa.array(sorted(keys), pa.binary())))\n',
        "",
        "tests/spark/test_schemas.py::test_a_read_of_one_key_has_no_other",
    ),
    Mutation(
        "a filter on the text of a key reads all files",
        "pyspark_imap_wal/filters.py",
        '        if _attribute(pushed) == KEY_TEXT and kind in ("EqualTo", "In"):\n',
        "        if False:\n",
        "tests/spark/test_schemas.py::test_a_filter_by_text_of_a_key_is_pushed",
    ),
    Mutation(
        "a typed column of JSON has a time without its nanoseconds",
        "imap_wal/sql/columns.py",
        "if self._later and _has_nanoseconds(data):",
        "if False:",
        "tests/unit/test_typed_columns.py::test_every_value_comes_back_typed_or_rescued",
    ),
    Mutation(
        "a column with a quote in its name ends a read",
        "imap_wal/sql/columns.py",
        "        self._is_quick = all(map(_is_name_of_msgspec, self._names))\n",
        "        self._is_quick = True\n",
        "tests/unit/test_typed_columns.py::test_all_values_of_a_sample_fit_the_proposal",
    ),
)
