"""Deliberate defects in changes that depend on a value, and in changes of several maps."""

from __future__ import annotations

from tests.faults.mutation import Mutation

OF_ATOMIC_CHANGES = (
    Mutation(
        "change overwrites what another caller has set",
        "imap_wal/embedded/decisions.py",
        "        if present != before:\n            return False, ()\n",
        "",
        "tests/durable/test_atomic_changes.py::test_change_is_repeated_if_the_value_changed",
    ),
    Mutation(
        "a transaction does not compare what it has read",
        "imap_wal/embedded/decisions.py",
        "        return same, changes if same else ()\n",
        "        return True, changes\n",
        "tests/durable/test_atomic_changes.py::test_a_transaction_runs_again_after_a_conflict",
    ),
    Mutation(
        "threads that wait for one number have a commit each",
        "imap_wal/embedded/map_writer.py",
        "            if logged and self._turns:\n",
        "            if False:\n",
        "tests/durable/test_atomic_changes.py::test_threads_that_add_share_syncs",
    ),
    Mutation(
        "add forgets when the key expires",
        "imap_wal/embedded/decisions.py",
        "[serializer.dump(total)], _expiry(expires))",
        "[serializer.dump(total)])",
        "tests/durable/test_atomic_changes.py::test_add_and_change_keep_the_expiry",
    ),
    Mutation(
        "a batch takes a change after its end, and loses it",
        "imap_wal/embedded/transaction.py",
        "            self._closed = True\n",
        "            pass\n",
        "tests/durable/test_atomic_changes.py::test_a_change_after_the_end_is_refused_not_lost",
    ),
)
