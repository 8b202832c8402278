"""A segment on a node's own disk and its uploaded copy differ: one of them is damaged, or the disk
is an older copy. The good one is never deleted, and nothing is lost without an error."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from imap_wal.errors import CorruptLog
from imap_wal.placement.router import OwnDiskStore, Unasked
from storage_backends import Unavailable
from storage_backends.memory import MemoryStore
from tests.kit.disk_writer import NODE, Writer, restored

_names = itertools.count()


def stores() -> tuple[MemoryStore, MemoryStore]:
    """A root and a disk."""
    name = f"differing-{next(_names)}"
    return MemoryStore(f"{name}-root"), MemoryStore(f"{name}-disk")


def test_a_lost_disk_makes_former_answers_unknown() -> None:
    """Request 2 was acknowledged, and was on the lost disk alone: no member may learn that it
    counts."""
    root, disk = stores()
    writer = Writer(root, disk, 1)
    writer.put("a", "1", 1)
    writer.log.rotate()
    writer.uploads.run()
    writer.put("a", "2", 2)
    writer.log.manifests.update(lambda manifest: replace(manifest, former={7: 2, 8: 0}))
    writer.log.permit.release()  # as the end of its process would
    later = Writer(root, stores()[1], 2, "partial")
    assert later.log.manifests.read()[1].former == {7: -1, 8: -1}


def alone(root: MemoryStore) -> dict[str, str]:
    """What the root has without the disk."""
    return restored(OwnDiskStore(root, None, "", Unasked(root)))[0]


def files(store: MemoryStore) -> dict[str, bytes]:
    return {
        file.path: store.read(file.path)
        for file in store.list(f"{NODE}/wal")
        if not file.path.endswith(".writer")
    }


def roll_back(now: MemoryStore, before: dict[str, bytes]) -> None:
    """Roll a disk back to an older image."""
    for path in files(now):
        now.delete(path)
    for path, data in before.items():
        now.create(path, data)


def rolled_back() -> tuple[MemoryStore, MemoryStore, dict[str, str]]:
    """The disk has two of the five changes of its only segment, which was uploaded when sealed."""
    root, disk = stores()
    writer = Writer(root, disk, 1)
    for request in (1, 2):
        writer.put(f"k{request}", f"v{request}", request)
    image = files(disk)
    for request in (3, 4, 5):
        writer.put(f"k{request}", f"v{request}", request)
    writer.log.rotate()
    writer.uploads.run()
    writer.log.permit.release()  # as the end of its process would
    roll_back(disk, image)
    return root, disk, {f"k{each}": f"v{each}" for each in range(1, 6)}


@pytest.mark.parametrize("policy", ["full", "partial"])
def test_a_disk_that_was_rolled_back_is_refused(policy: str) -> None:
    root, disk, known = rolled_back()
    before = files(root), files(disk)
    with pytest.raises(CorruptLog, match="restored from an older copy") as refused:
        Writer(root, disk, 2, policy)
    assert disk.url in str(refused.value)
    assert root.url in str(refused.value)
    assert (files(root), files(disk)) == before
    assert alone(root) == known
    writer = Writer(root, stores()[1], 3, policy)  # with an empty disk, as the advice says
    assert restored(writer.store)[0] == known


def test_a_recovery_never_deletes_a_better_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the disk was rolled back after the open had compared them."""
    root, disk, known = rolled_back()
    monkeypatch.setattr("imap_wal.write.opening.demand_same", lambda *_: None)
    with pytest.raises(CorruptLog, match="restored from an older copy"):
        Writer(root, disk, 2)
    monkeypatch.undo()
    for file in files(disk):
        disk.delete(file)
    assert alone(root) == known


def uploaded(*keys: str) -> tuple[MemoryStore, MemoryStore, str]:
    """After a clean stop: a root, a disk, and the only segment."""
    root, disk = stores()
    writer = Writer(root, disk, 1, keys=keys)
    for request in (1, 2, 3):
        writer.put(f"k{request}", f"v{request}" * 50, request)
    writer.log.close(True)
    writer.uploads.finish(10)
    (path,) = (path for path in files(root) if path.endswith(".wal"))
    return root, disk, path


def flip(store: MemoryStore, path: str, text: bytes) -> None:
    data = bytearray(store.read(path))
    data[data.index(text)] ^= 4
    store.replace(path, bytes(data))


def test_a_damaged_disk_is_refused_before_it_is_emptied() -> None:
    """`point-in-time` would give up what follows the damage, and delete the whole copy."""
    root, disk, path = uploaded()
    flip(disk, path, b"v2" * 50)
    whole = root.read(path)
    with pytest.raises(CorruptLog, match="move that file away"):
        Writer(root, disk, 2, recovery_mode="point-in-time")
    assert root.read(path) == whole
    disk.delete(path)  # as the advice says
    found = restored(Writer(root, disk, 3, recovery_mode="point-in-time").store)[0]
    assert found == {f"k{each}": f"v{each}" * 50 for each in (1, 2, 3)}


def test_reserved_space_on_the_disk_is_no_difference() -> None:
    root, disk = stores()
    writer = Writer(root, disk, 1)
    writer.put("a", "1", 1)
    writer.log.rotate()
    writer.uploads.run()
    writer.log.permit.release()
    (path,) = (path for path in files(root) if path.endswith(".wal"))
    disk.replace(path, disk.read(path) + bytes(4096))
    assert restored(Writer(root, disk, 2).store)[0] == {"a": "1"}


def test_a_damaged_disk_never_replaces_its_upload() -> None:
    root, disk, path = uploaded()
    whole, known = root.read(path), alone(root)
    flip(disk, path, b"v2" * 50)
    uploads = Writer(root, disk, 2).uploads  # after a clean stop, only the last frame is read
    for _ in range(2):
        with pytest.raises(CorruptLog, match="move that file away") as stopped:
            uploads.run()
    assert f"{disk.url}/{path} differs" in str(stopped.value)
    assert f"{root.url}/{path}:" in str(stopped.value)
    assert root.read(path) == whole
    assert alone(root) == known


def test_a_damaged_disk_is_in_the_upload_state() -> None:
    root, disk, path = uploaded()
    flip(disk, path, b"v2" * 50)
    writer = Writer(root, disk, 2)
    writer.put("k4", "v4", 4)
    writer.log.rotate()
    writer.uploads._pause = 0.01
    assert not writer.uploads._turn(writer.uploads.worker)
    assert writer.uploads.statistics.failures == 1
    assert "is damaged" in writer.uploads.statistics.error
    disk.delete(path)  # as the advice says
    writer.uploads._pause = 0.01
    assert writer.uploads._turn(writer.uploads.worker)
    assert writer.uploads.statistics.error == ""
    assert alone(root)["k4"] == "v4"


def test_two_damaged_copies_are_both_kept() -> None:
    root, disk, path = uploaded()
    flip(disk, path, b"v2" * 50)
    flip(root, path, b"v3" * 50)
    before = root.read(path)
    with pytest.raises(CorruptLog, match="both are damaged"):
        Writer(root, disk, 2).uploads.run()
    assert root.read(path) == before


def test_a_damaged_upload_is_replaced_later_too() -> None:
    root, disk, path = uploaded()
    flip(root, path, b"v2" * 50)
    uploads = Writer(root, disk, 2).uploads
    with pytest.raises(Unavailable, match="uploads the segment again"):
        uploads.run()
    uploads.run()
    assert root.read(path) == disk.read(path)


def test_a_cut_upload_is_replaced_by_the_disk() -> None:
    root, disk, path = uploaded()
    root.replace(path, root.read(path)[:-100])
    uploads = Writer(root, disk, 2).uploads
    with pytest.raises(Unavailable, match="uploads the segment again"):
        uploads.run()
    uploads.run()
    assert root.read(path) == disk.read(path)


def test_encrypted_copies_are_compared_without_keys() -> None:
    root, disk, path = uploaded("a")
    for damaged, error in ((root, Unavailable), (disk, CorruptLog)):
        data = bytearray(damaged.read(path))
        data[len(data) // 2] ^= 4
        damaged.replace(path, bytes(data))
        writer = Writer(root, disk, 2, keys=["a"])
        with pytest.raises(error):
            writer.uploads.run()
        if damaged is root:
            writer.uploads.run()
            assert root.read(path) == disk.read(path)
        writer.log.close(True)
    assert root.read(path) != disk.read(path)
