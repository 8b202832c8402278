"""The reserve of a disk: when it is taken, who may use it, and when it is taken again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imap_wal.placement.router import SplitStore
from storage_backends import NoSpace
from storage_backends.interface import Appender
from storage_backends.local import LocalStore
from storage_backends.reserve import RESERVE_NAME, DiskState, disks_of, reserves
from tests.kit.disks import needed_disk

MIB = 1 << 20
pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="nothing is reserved")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    with needed_disk(tmp_path / "disk", 16) as made:
        yield made


def state(store: LocalStore) -> DiskState:
    found = store.reserve.state()
    assert found is not None
    return found


def fill(folder: Path) -> Path:
    """Use all that is free."""
    filler = folder / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (64 * 1024, 4096):
        try:
            while True:
                os.write(fd, bytes(size))
        except OSError:
            pass
    os.close(fd)
    return filler


def full(disk: Path) -> tuple[LocalStore, Path]:
    """A store with a reserve of 2 MiB on a disk that other files have filled."""
    store = LocalStore(str(disk))
    store.reserve.take(2 * MIB)
    return store, fill(disk)


def test_the_reserve_holds_its_blocks_and_is_not_listed(disk: Path) -> None:
    store = LocalStore(str(disk))
    before = state(store).free
    store.reserve.take(2 * MIB)
    assert (state(store).held, state(store).wanted) == (2 * MIB, 2 * MIB)
    assert before - state(store).free >= 2 * MIB
    assert (store.list(""), store.folders("")) == ([], [])
    assert (disk / RESERVE_NAME).stat().st_mode & 0o777 == 0o600
    store.reserve.take(0)
    assert (state(store).free, state(store).wanted) == (before, 0)


def test_a_disk_without_room_gets_no_reserve_and_no_limit(disk: Path) -> None:
    store = LocalStore(str(disk))
    store.reserve.take(5 * MIB)  # not four times as much is free
    assert state(store).wanted == store.reserve.floor() == 0
    fill(disk).write_bytes(b"")
    store.open_append("1.wal").append(bytes(15 * MIB))


def test_only_a_maintenance_command_gives_the_reserve_up(disk: Path) -> None:
    store, _ = full(disk)
    with pytest.raises(NoSpace):
        store.create("small", bytes(5000))
    assert state(store).held == 2 * MIB
    upkeep = LocalStore(str(disk))
    upkeep.reserve.may_be_given_up = True
    upkeep.create("small", bytes(5000))
    assert (state(store).held, state(store).wanted) == (0, 2 * MIB)
    assert store.read("small") == bytes(5000)


def test_each_step_of_maintenance_may_use_the_reserve(disk: Path) -> None:
    (source := disk.parent / "source").write_bytes(b"a" * 300_000)
    for step in ("create", "create_from", "replace", "lock"):
        store, filler = full(disk)
        store.reserve.may_be_given_up = True
        if step == "create_from":
            store.create_from(step, str(source))
            assert store.read(step) == b"a" * 300_000, "the first try read a part of the source"
        elif step == "lock":
            store.lock(step, "me").release()
        else:
            getattr(store, step)(step, bytes(300_000))
        assert store.reserve.given_up == 2 * MIB
        filler.unlink()
        store.reserve.take_again()
        assert (store.reserve.given_up, state(store).held) == (0, 2 * MIB)


@pytest.mark.parametrize("preallocate_bytes", [0, MIB])
def test_appends_do_not_use_a_reserve_that_was_given_up(disk: Path, preallocate_bytes: int) -> None:
    store, filler = full(disk)
    os.truncate(filler, filler.stat().st_size - 3 * MIB)
    appender = store.open_append("1.wal", preallocate_bytes)
    assert store.reserve.give_up()
    appended = exhaust(appender)
    assert appended >= preallocate_bytes
    assert state(store).free >= 2 * MIB
    with pytest.raises(NoSpace, match="are for rewrite and prune"):
        appender.append(bytes(state(store).free))
    with (disk / "more").open("wb") as more:
        os.posix_fallocate(more.fileno(), 0, state(store).free - MIB)
    with pytest.raises(NoSpace, match="are for rewrite and prune"):
        store.open_append("2.wal", preallocate_bytes)
    assert [file.path for file in store.list("")] == ["1.wal", "filler", "more"]
    appender.close()


def exhaust(appender: Appender) -> int:
    """Append until the disk is full; how many bytes there were."""
    try:
        while True:
            appender.append(bytes(64 * 1024))
    except NoSpace:
        return appender.size


def test_the_next_segment_takes_the_reserve_again(disk: Path) -> None:
    store, filler = full(disk)
    assert store.reserve.give_up()
    filler.unlink()
    store.open_append("1.wal", MIB).close()
    assert state(store).held == 2 * MIB


@pytest.mark.parametrize("before", [0, MIB])
def test_a_reserve_that_does_not_fit_limits_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The disk was filled after its free space was asked for."""
    store = LocalStore(str(tmp_path))
    store.reserve.take(before)
    assert store.reserve.give_up() == bool(before)

    def full(fd: int, offset: int, length: int) -> None:
        os.pwrite(fd, bytes(length // 2), offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    store.reserve.take(2 * MIB)
    assert (store.reserve.floor(), state(store).held) == (before, 0)


def test_a_reserve_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    (other := tmp_path / "other").write_bytes(b"precious")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / RESERVE_NAME).symlink_to(other)
    store = LocalStore(str(tmp_path / "log"))
    store.reserve.take(MIB)
    assert not store.reserve.give_up()
    assert (other.read_bytes(), store.reserve.floor()) == (b"precious", 0)


def test_root_and_wal_dir_have_a_reserve_each(tmp_path: Path) -> None:
    store = SplitStore(LocalStore(str(tmp_path / "a")), LocalStore(str(tmp_path / "b")))
    for folder in "ab":
        (tmp_path / folder).mkdir()
    for each in reserves(store):
        each.take(MIB)
    assert {name: disk.held for name, disk in disks_of(store).items()} == {"root": MIB, "wal": MIB}
