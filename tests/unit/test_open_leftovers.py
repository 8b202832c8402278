"""What an open leaves in the folder of the log, beside its entries."""

from __future__ import annotations

import pytest

from imap_wal import layout
from imap_wal.errors import CorruptLog
from storage_backends.errors import Unavailable
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.support import IDENTITY, copy_files, node_log, row, segments

FOLDER = IDENTITY.node_folder


def test_a_recovered_segment_is_newer_than_the_former_manifest(memory: MemoryStore) -> None:
    """Its name has the epoch of the recovery. So if the manifest of that epoch is lost, an open
    refuses the former one: otherwise it would begin the epoch a second time."""
    log = node_log(memory)
    log.write(1, 1, [row("k", "v")])
    log.sync()
    killed = copy_files(memory)
    before = {file.path for file in killed.list(f"{FOLDER}/manifest")}
    assert node_log(killed).epoch == 2
    left = copy_files(killed)
    assert {layout.recovered_by(path) for path in segments(left)} == {2}
    for file in left.list(f"{FOLDER}/manifest"):
        if file.path not in before:
            left.delete(file.path)
    with pytest.raises(CorruptLog, match="older than the files"):
        node_log(left)


def test_an_open_removes_the_permits_of_failed_opens(memory: MemoryStore) -> None:
    """An open creates its permit before it publishes its epoch. If that fails, it may not be able
    to delete its permit."""

    def permits() -> list[str]:
        return [file.path for file in memory.list(FOLDER) if layout.parse_writer_path(file.path)]

    node_log(memory).close()
    for seed in (2, 3):
        plan = Plan(
            (
                Fault("error", kind="create", path="*/manifest/*", times=0),
                Fault("error", kind="delete", path="*.writer", times=0),
            )
        )
        with pytest.raises(Unavailable):
            node_log(FaultyStore(memory, plan), seed=seed)
    failed = permits()
    assert len(failed) >= 2
    log = node_log(memory, seed=4)
    (own,) = permits()
    assert own not in failed
    log.write(1, 1, [row("k", "v")])
    log.sync()
