"""The folder of a writer is replaced while it runs: by a copy of itself, or by nothing.

A writer knows its permit and its segment by what they are, not by their names. So everything that
it acknowledges is in the folder that the next open finds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import Fenced, ImapWalError, OutcomeUnknown
from storage_backends import SegmentStore, StorageError
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.effort import step
from tests.kit.nth_call import AtCall, counted
from tests.support import FakeClock, embedded

SMALL: dict[str, Any] = {"segment_bytes": 64 * 1024, "preallocate": False}


def copied(root: Path) -> None:
    shutil.copytree(root, f"{root}-copy", symlinks=True, copy_function=shutil.copy2)
    root.rename(f"{root}-old")
    Path(f"{root}-copy").rename(root)


def away(root: Path) -> None:
    """Before the copy has the name."""
    root.rename(f"{root}-old")


def linked(root: Path) -> None:
    """A symbolic link is switched to a copy."""
    target = root.resolve()
    shutil.copytree(target, f"{target}-copy")
    root.unlink()
    root.symlink_to(f"{target}-copy")


def newest_segment(root: Path) -> Path:
    return max(root.rglob("*.wal"))


def deleted(root: Path) -> None:
    newest_segment(root).unlink()


def moved(root: Path) -> None:
    segment = newest_segment(root)
    segment.rename(root.parent / segment.name)


def segment_copied(root: Path) -> None:
    segment = newest_segment(root)
    shutil.copy2(segment, root / "copy")
    (root / "copy").rename(segment)


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
@pytest.mark.parametrize("replace", [copied, away, linked, deleted, moved, segment_copied])
def test_nothing_is_acknowledged_after_a_folder_was_replaced(
    tmp_path: Path, replace: Callable[[Path], None], durability: Any
) -> None:
    root = tmp_path / "log"
    if replace is linked:
        (tmp_path / "real").mkdir()
        root.symlink_to(tmp_path / "real")
    store = imap_wal.open(root, node="n1", durability=durability, **SMALL)
    m = store.map("m")
    m["before"] = 1
    replace(root)
    with pytest.raises(OutcomeUnknown, match="its folder was replaced") as first:
        m["after"] = 2
    assert isinstance(first.value.__cause__, Fenced)
    with pytest.raises(Fenced, match="bring that back before you open the log again"):
        m["later"] = 3
    assert dict(m) == {"before": 1}
    store.close()


def test_an_idle_writer_notices_a_replaced_folder(tmp_path: Path) -> None:
    """Its maintenance looks from time to time; so does an archive run."""
    root = tmp_path / "log"
    store = imap_wal.open(root, node="n1", **SMALL)
    store.map("m")["before"] = 1
    copied(root)
    lost = store.committer.log.permit.lost()
    assert lost is not None and "its folder was replaced" in str(lost)
    with pytest.raises(Fenced, match="its folder was replaced"):
        store.archive()
    store.close()
    with imap_wal.open(f"{root}-old", node="n1") as again:
        assert dict(again.map("m")) == {"before": 1}


def test_a_folder_that_is_briefly_away_is_not_replaced(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with imap_wal.open(root, node="n1", **SMALL) as store:
        store.map("m")["a"] = 1
        root.rename(tmp_path / "away")
        assert store.committer.log.permit.lost() is None
        (tmp_path / "away").rename(root)
        store.map("m")["b"] = 2
    with imap_wal.open(root, node="n1") as again:
        assert dict(again.map("m")) == {"a": 1, "b": 2}


def test_a_closed_store_holds_no_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with imap_wal.open(tmp_path / "log", node="n1", **SMALL) as store:
            store.map("m")["a"] = 1
    assert len(os.listdir("/proc/self/fd")) == before


def replaced_at(inner: MemoryStore, at: int) -> AtCall:
    """Before operation `at`, counted from 0, all files are replaced by copies of themselves."""

    def replace() -> None:
        with inner._medium.mutex:
            inner._medium.files = deepcopy(inner._medium.files)

    return AtCall(inner, at, replace)


def workload(store: SegmentStore, acknowledged: dict[str, int]) -> None:
    """Open, change, archive, open again."""
    for life in range(2):
        opened = embedded(store, segment_bytes=400)
        try:
            for number in range(6):
                key = f"k{life}-{number}"
                opened.map("m")[key] = number
                acknowledged[key] = number
                if number == 3:
                    opened.archive()
        finally:
            opened.close()


def replacements() -> Iterator[int]:
    whole = counted(MemoryStore("replaced"))
    workload(whole, {})
    return iter(range(0, whole.calls, min(step(), 7)))


def test_a_replacement_at_any_operation_loses_nothing_acknowledged() -> None:
    """Of an open, a put, a rotation, an archive run and a close."""
    refused = 0
    for at in replacements():
        inner = MemoryStore(f"replaced-{at}")
        acknowledged: dict[str, int] = {}
        try:
            workload(replaced_at(inner, at), acknowledged)
        except (ImapWalError, StorageError):
            refused += 1
        left = MemoryStore(f"replaced-{at}-left")
        left._medium.files = deepcopy(inner._medium.files)
        with embedded(left, takeover=True) as again:
            found = dict(again.map("m"))
        assert acknowledged.items() <= found.items(), f"operation {at}"
    assert refused > 5


@pytest.mark.parametrize("published", [False, True])
def test_a_replaced_prefix_is_noticed_at_the_next_checkpoint(
    tmp_path: Path, published: bool
) -> None:
    """On a storage without files that a process can hold. The copy has an older manifest, or only
    fewer objects."""
    root = tmp_path / "log"
    clock = FakeClock()
    store = embedded(LocalObjects(str(root)), clock=clock)
    m, committer = store.map("m"), store.committer
    m["before"] = 1
    shutil.copytree(root, f"{root}-copy")
    m["between"] = 2
    if published:
        clock.advance(100)
        committer.checkpoint_if_due()
    root.rename(f"{root}-old")
    Path(f"{root}-copy").rename(root)
    m["after"] = 3
    clock.advance(100)
    with pytest.raises(Fenced, match="its folder was replaced"):
        committer.checkpoint_if_due()
    with pytest.raises(Fenced, match="bring that back before you open the log again"):
        m["later"] = 4
    store.close()


def test_checkpoints_and_archives_of_objects_continue(tmp_path: Path) -> None:
    clock = FakeClock()
    with embedded(LocalObjects(str(tmp_path / "log")), clock=clock) as store:
        for number in range(6):
            store.map("m")[number] = number
            if number % 2:
                store.archive()
            clock.advance(100)
            store.committer.checkpoint_if_due()
