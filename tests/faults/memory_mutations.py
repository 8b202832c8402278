"""Deliberate defects in what a map has in memory."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_FILE = "tests/durable/test_held_keys.py"
_CHANGES, _KEYS = "imap_wal/embedded/changes.py", "imap_wal/embedded/held_keys.py"

OF_MEMORY = (
    Mutation(
        "a read finds a value that has expired",
        _CHANGES,
        "                self.quick = NOTHING  # first: ",
        "                pass  # ",
        f"{_FILE}::test_a_time_to_live_ends_and_begins_quick_reads",
    ),
    Mutation(
        "a closed store answers reads from memory",
        _CHANGES,
        "        self._retired = True\n        self.quick = NOTHING\n",
        "        self._retired = True\n",
        f"{_FILE}::test_every_read_after_the_end_is_refused",
    ),
    Mutation(
        "a forked child reads its parent's memory",
        "imap_wal/forked.py",
        "        handle.end()\n",
        "        handle.closed = True\n",
        f"{_FILE}::test_a_forked_child_reads_nothing",
    ),
    Mutation(
        "other bytes of an equal key are that key",
        _KEYS,
        "return key if self.serializer.dump_key(key) == data else ForeignKey(data)",
        "return key",
        f"{_FILE}::test_a_foreign_key_is_not_another_key",
    ),
    Mutation(
        "keys are compared only together",
        _KEYS,
        "return keys if [*map(pack, keys)] == [*data] else None",
        "return keys if len(keys) == len(data) else None",
        f"{_FILE}::test_bytes_that_are_a_key_only_together_are_foreign",
    ),
    Mutation(
        "a read brings an older value back",
        _CHANGES,
        "                if self.values.get(key) is value:\n",
        "                if True:\n",
        f"{_FILE}::test_a_read_never_brings_an_older_value_back",
    ),
    Mutation(
        "a read changes the bytes of a value",
        _CHANGES,
        "            and dump(loaded) == value\n",
        "",
        f"{_FILE}::test_other_bytes_of_a_value_stay_for_comparisons",
    ),
    Mutation(
        "a compaction is lost if its thread begins late",
        "imap_wal/rewrite/compaction.py",
        "            self._finished.wait(max(until",
        "            self.worker.stop(max(until",
        "tests/durable/test_automatic_compaction.py::"
        "test_a_close_before_the_first_look_compacts_too",
    ),
    Mutation(
        "a serializer of the user does not decide which keys are equal",
        _KEYS,
        "    if methods == (MsgpackSerializer.dump_key, MsgpackSerializer.load_key):\n",
        "    if isinstance(serializer, MsgpackSerializer):\n",
        f"{_FILE}::test_a_serializer_of_the_user_decides_which_keys_are_equal",
    ),
)
