"""Deliberate defects of opens that are refused, and must have changed nothing. See
`tests.faults.mutations`."""

from __future__ import annotations

from tests.faults.mutation import Mutation

REFUSED = "tests/actors/test_refusals.py::test_a_refused_call_changes_nothing"
CLOSED = "tests/actors/test_refusals.py::test_a_closed_log_is_refused_unchanged"

OF_REFUSALS = (
    Mutation(
        "the former writer is fenced before the log was proved",
        "imap_wal/write/opening.py",
        "            recovery.prove(wal, fenced=self._fences_by_object(manifest))\n",
        "            pass\n",
        f"{REFUSED}[objects-damaged segment]",
    ),
    Mutation(
        "a takeover takes the lock before it was proved",
        "imap_wal/write/opening.py",
        "        if takeover:\n            self.prove()\n",
        "        if False:\n            self.prove()\n",
        f"{REFUSED}[objects-damaged segment]",
    ),
    Mutation(
        "the former permit is deleted before the new one exists",
        "imap_wal/write/opening.py",
        "            self._create_permit(claimed)\n            self._shut_out(former)\n",
        "            self._shut_out(former)\n",
        f"{REFUSED}[files-full]",
    ),
    Mutation(
        "an open publishes before it examines the logs of other nodes",
        "imap_wal/embedded/opening.py",
        "                others.update(prove_others(log_context))\n",
        "                pass\n",
        f"{REFUSED}[files-damaged segment]",
    ),
    Mutation(
        "an open publishes before it looks for what the restore needs",
        "imap_wal/embedded/opening.py",
        "            prove_restore(all_logs, node, chosen)\n",
        "            pass\n",
        f"{REFUSED}[files-missing archive]",
    ),
    Mutation(
        "keys that cannot read a log become keys of it",
        "imap_wal/read/proof.py",
        "    has_all = manifest.keys.keys() <= ring.keys.keys()\n",
        "    has_all = True\n",
        f"{CLOSED}[objects-another list of keys]",
    ),
    Mutation(
        "the scan after the fence leaves out what was added since the proof",
        "imap_wal/write/log_scan.py",
        "                if index == len(self.files) - 1 and not self._fenced:\n",
        "                if False:\n",
        "tests/unit/test_proofs.py::test_what_a_writer_adds_after_the_proof_counts",
    ),
    Mutation(
        "what was proved is read again after the fence",
        "imap_wal/write/log_scan.py",
        "        if earlier._damaged or earlier.files",
        "        if True or earlier.files",
        "tests/unit/test_proofs.py::test_an_object_is_read_once_by_an_open",
    ),
    Mutation(
        "a commit between two reads of a takeover counts as damage",
        "imap_wal/write/recovery.py",
        "            if damage == former:\n",
        "            if True:\n",
        "tests/unit/test_proofs.py::test_a_commit_between_two_reads_is_no_damage",
    ),
    Mutation(
        "a command changes older manifests of a cluster",
        "rewrite_cli/commands/upkeep/decode.py",
        "                current_cluster(log.context",
        "                (lambda *_: None)(log.store",
        "tests/actors/test_refusals.py::test_a_change_of_older_manifests_is_refused",
    ),
    Mutation(
        "a backfill is added to a log without one of its nodes",
        "imap_wal/retention/backfill.py",
        "        if not number:\n",
        "        if False:\n",
        "tests/actors/test_refusals.py::test_a_missing_node_takes_no_backfill",
    ),
    Mutation(
        "a misspelt option of a storage is left to a driver that ignores it",
        "storage_backends/objects.py",
        "            demand_spelt(type(self._fs), options)\n",
        "",
        "tests/storage/test_drivers.py::test_a_misspelt_option_is_no_ignored_one",
    ),
)
