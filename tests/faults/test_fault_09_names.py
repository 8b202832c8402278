"""Fault 9: a rename or a directory entry is lost; a rewriter dies between publishing and
pruning."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from imap_wal.errors import ImapWalError
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore, forget
from tests.faults.disk import BYTES, NAMES, RecordedDisk
from tests.faults.workload import Life, Reference
from tests.kit.effort import every, step
from tests.kit.faults import Cases
from tests.support import contents, copy_files

CRASHES = tuple((names, data) for names in NAMES for data in BYTES)
_names = itertools.count()


def crashes(
    root: Path,
    prepare: Callable[[LocalStore], None],
    action: Callable[[LocalStore], None],
    seed: int,
) -> list[tuple[bool, dict[str, bytes]]]:
    """(whether the action had returned, what is left) for power losses at each system call of
    it."""
    with RecordedDisk(str(root)) as disk:
        store = LocalStore(str(root))
        prepare(store)
        disk.mark("begin")
        action(store)
        disk.mark("returned")
    images = [
        (note == "returned", image)
        for _, _, note, image in disk.images(CRASHES, Random(seed))
        if note
    ]
    assert any(returned for returned, _ in images)
    return images


def appended(store: LocalStore) -> None:
    appender = store.open_append("a/b/c")
    appender.append(b"new")
    appender.sync()
    appender.close()


def from_file(store: LocalStore) -> None:
    local = Path(store.root).with_suffix(".local")
    local.write_bytes(b"new")
    store.create_from("a/b/c", str(local))


OPERATIONS: dict[
    str,
    tuple[Callable[[LocalStore], None], Callable[[LocalStore], None], bytes | None, bytes | None],
] = {
    "create": (lambda store: None, lambda store: store.create("a/b/c", b"new"), None, b"new"),
    "create in a folder of another process": (
        lambda store: os.makedirs(f"{store.root}/a/b"),
        lambda store: store.create("a/b/c", b"new"),
        None,
        b"new",
    ),
    "create_from": (lambda store: None, from_file, None, b"new"),
    "replace": (
        lambda store: store.create("a/b/c", b"old"),
        lambda store: store.replace("a/b/c", b"new" * 400),
        b"old",
        b"new" * 400,
    ),
    "replace of nothing": (
        lambda store: None,
        lambda store: store.replace("a/b/c", b"new"),
        None,
        b"new",
    ),
    "open_append": (lambda store: None, appended, None, b"new"),
    "delete": (
        lambda store: store.create("a/b/c", b"old"),
        lambda store: store.delete("a/b/c"),
        b"old",
        None,
    ),
    "delete beside another": (
        lambda store: (store.create("a/b/c", b"old"), store.create("a/b/d", b"x"))[0],
        lambda store: store.delete("a/b/c"),
        b"old",
        None,
    ),
    "truncate": (
        lambda store: store.create("a/b/c", b"old"),
        lambda store: store.truncate("a/b/c", 1),
        b"old",
        b"o",
    ),
}
"""Name → what was there before, the operation, the content of a/b/c before and after."""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_local_operations_survive_losing_unsynced_names(
    tmp_path: Path, cases: Cases, seed: int, operation: str
) -> None:
    """Every name that was not synced is lost.
    Fault 9: after it has returned it is done; before that it is done as a whole or not at all."""
    prepare, action, before, after = OPERATIONS[operation]
    for returned, image in crashes(tmp_path / "disk", prepare, action, seed):
        found = image.get("a/b/c")
        if operation != "open_append" or returned:  # what is being appended may be there in part
            assert found in ((after,) if returned else (before, after)), (
                f"{operation}, returned {returned}, seed {seed}"
            )
        cases(1)


def test_a_lost_file_name_is_never_silent(
    cases: Cases,
) -> None:
    """The missing file of the log is reported.
    Fault 9: a disk that lies about its syncs; each segment, archive and snapshot in turn."""
    inner = MemoryStore(f"names-{next(_names)}")
    reference = Reference()
    life = Life(inner, reference)
    life.play()
    life.play((("put", "x", 1), ("rotate",), ("put", "y", 2), ("rotate",), ("put", "z", 3)))
    for file in inner.list(""):
        if not file.path.endswith((".wal", ".parquet")):
            continue
        left = copy_files(inner)
        left.delete(file.path)
        if file.path == max(each.path for each in inner.list("") if each.path.endswith(".wal")):
            # No other file names the newest one: its name and its directory were synced before its
            # first commit.
            continue
        with pytest.raises(ImapWalError):
            contents(left, clock=reference.clock)
        cases(1)
    forget(inner.url.removeprefix("memory://"))


@every(2)
@pytest.mark.parametrize("action", ["kill", "power-loss"])
def test_a_dying_rewriter_damages_nothing(cases: Cases, seed: int, action: str) -> None:
    """It dies at any operation of publish and prune, or between them.
    Fault 9: the owner of the log continues to write meanwhile, and the next rewriter continues with
    what is left."""

    def shrink(life: Life, storage: FaultyStore) -> None:
        rewriter = Life(storage, life.reference)
        rewriter.store = life.store
        rewriter.play((("rewrite",), ("prune",)))

    def begun() -> tuple[MemoryStore, Life]:
        inner = MemoryStore(f"names-{next(_names)}")
        life = Life(inner, Reference())
        life.play(
            (
                ("put", "a", 1),
                ("rotate",),
                ("update", {"a": 2, "b": 1}),
                ("archive",),
                ("delete", "a"),
                ("put", "c", 1),
                ("rotate",),
                ("delete", "b"),
            )
        )
        return inner, life

    inner, life = begun()
    counted = FaultyStore(inner)
    shrink(life, counted)
    for at in range(1, counted.count + 1, step()):
        inner, life = begun()
        faulty = FaultyStore(
            inner, Plan((Fault("kill" if action == "kill" else "power-loss", at=at),), seed)
        )
        with pytest.raises(Killed):
            shrink(life, faulty)
        assert contents(inner, clock=life.reference.clock) == {"c": 1}, faulty.plan
        life.play(
            (
                ("put", "d", 1),
                ("delete", "c"),
                ("put", "a", 9),
                ("rewrite",),
                ("prune",),
                ("delete", "a"),
                ("archive",),
                ("reopen",),
            )
        )
        assert contents(inner, clock=life.reference.clock) == {"d": 1}, faulty.plan
        life.close()
        forget(inner.url.removeprefix("memory://"))
        cases(1)
