"""Appends to a local file: full disks, failed syncs, and reserved space."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_backends import NoSpace, StorageError, Unavailable, descriptors
from storage_backends.descriptors import ZERO_AHEAD_BYTES
from storage_backends.local import LocalStore
from tests.kit.disks import small_disk
from tests.kit.local import temporaries


# appending
def test_append_continues_after_a_short_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, real_vector = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data)[:3], offset))
    monkeypatch.setattr(
        os, "pwritev", lambda fd, chunks, offset: real_vector(fd, [b"".join(chunks)[:2]], offset)
    )
    appender = LocalStore(str(tmp_path)).open_append("1.wal", 64)
    appender.append(b"0123456789")
    appender.append(b"abc", b"", b"defgh", b"i")
    assert appender.size == 19
    appender.close()
    assert (tmp_path / "1.wal").read_bytes()[:20] == b"0123456789abcdefghi\0"


def test_full_disk_while_appending_leaves_size_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = LocalStore(str(tmp_path)).open_append("1.wal")
    appender.append(b"good")
    real = os.pwritev

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(
        os, "pwritev", lambda fd, chunks, offset: real(fd, [b"".join(chunks)[:5]], offset)
    )
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoSpace, match="No space left"):
        appender.append(b"0123456789")
    assert appender.size == 4
    monkeypatch.undo()
    appender.truncate(4)
    appender.append(b"!")
    appender.close()
    assert (tmp_path / "1.wal").read_bytes() == b"good!"


def test_failed_sync_cannot_be_followed_by_one_that_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = LocalStore(str(tmp_path)).open_append("1.wal")
    appender.append(b"lost")

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(descriptors, "_sync_data", failing)
    with pytest.raises(Unavailable, match="Input/output error"):
        appender.sync()
    monkeypatch.undo()
    for again in (appender.sync, lambda: appender.append(b"x"), lambda: appender.truncate(0)):
        with pytest.raises(Unavailable, match="an earlier sync failed"):
            again()
    appender.close()


def test_file_system_without_preallocation_works_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    store = LocalStore(str(tmp_path))
    appender = store.open_append("1.wal", 1 << 20)
    appender.append(b"x")
    appender.close()
    assert store.size("1.wal") == 1


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, or a stand-in where mounting is not allowed (then `NoSpace` is checked
    through /dev/full)."""
    folder = tmp_path / "small"
    with small_disk(folder, 1) as disk:
        if disk is None:
            (folder / "full").symlink_to("/dev/full")
        yield folder


def test_full_disk_is_no_space_and_leaves_nothing_partial(full_disk: Path) -> None:
    if (full_disk / "full").exists():
        with (
            open(full_disk / "full", "r+b", buffering=0) as device,
            pytest.raises(NoSpace, match="ENOSPC"),
        ):
            try:
                os.write(device.fileno(), b"x")
            except OSError as error:
                raise descriptors.translate(error, "full") from error
        return
    store = LocalStore(str(full_disk))
    store.create("small", b"x")
    for attempt in (
        lambda: store.create("big", bytes(2 << 20)),
        lambda: store.replace("small", bytes(2 << 20)),
    ):
        with pytest.raises(NoSpace, match="No space left"):
            attempt()
    assert [(file.path, file.size) for file in store.list("")] == [("small", 1)]
    assert temporaries(full_disk) == []
    appender = store.open_append("2.wal")
    with pytest.raises(NoSpace):
        for _ in range(40):
            appender.append(bytes(65_536))
    size = appender.size
    assert size % 65_536 == 0
    appender.close()
    store.truncate("2.wal", size)
    assert store.size("2.wal") == size


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="nothing is reserved here")
def test_a_segment_reserves_at_most_half_free_space(
    full_disk: Path,
) -> None:
    """The rest can be written."""
    if (full_disk / "full").exists():
        pytest.skip("mount needs root")
    store = LocalStore(str(full_disk))
    appender = store.open_append("1.wal", 64 << 20)
    assert 256 * 1024 < store.size("1.wal") <= 512 * 1024
    store.create("beside", bytes(256 * 1024))
    for _ in range(9):
        appender.append(bytes(65_536))
    appender.sync()
    appender.truncate(appender.size)
    appender.close()
    assert store.size("1.wal") == 9 * 65_536


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_reserve_that_does_not_fit_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The segment grows."""

    def half_way(fd: int, offset: int, length: int) -> None:
        os.pwrite(
            fd, bytes(length // 2), offset
        )  # as a file system without `fallocate` is helped by the C library
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", half_way, raising=False)
    store = LocalStore(str(tmp_path))
    appender = store.open_append("1.wal", 1 << 20)
    assert os.stat(tmp_path / "1.wal").st_blocks == 0
    appender.append(b"x")
    appender.sync()
    appender.close()
    assert store.read("1.wal") == b"x"


def test_limit_on_file_size_is_a_storage_error(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            appender = LocalStore(str(tmp_path)).open_append("1.wal")
            try:
                appender.append(bytes(10_000))
            except StorageError as error:
                code = 42 if appender.size == 0 and "ulimit -f" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_reserved_space_is_zeroed_before_small_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No zeros are written beyond the reserved space."""
    written: list[tuple[int, int]] = []
    real = os.pwritev

    def pwritev(fd: int, chunks: list[bytes], offset: int) -> int:
        written.append((offset, sum(map(len, chunks))))
        return real(fd, chunks, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    reserved = ZERO_AHEAD_BYTES + 1000
    appender = LocalStore(str(tmp_path)).open_append("1.wal", reserved)
    appender.append(b"a" * 100)
    appender.append(b"b" * 100)  # zeroed already
    appender.append(b"c" * ZERO_AHEAD_BYTES)  # large: writes itself only
    appender.append(b"d" * 500)  # zeros up to the end of what is reserved
    appender.append(b"e" * 600)  # beyond it
    sizes = [100 + ZERO_AHEAD_BYTES, 100, ZERO_AHEAD_BYTES, 800, 600]
    offsets = [0, 100, 200, 200 + ZERO_AHEAD_BYTES, 700 + ZERO_AHEAD_BYTES]
    assert written == list(zip(offsets, sizes, strict=True))
    assert (
        tmp_path / "1.wal"
    ).read_bytes() == b"a" * 100 + b"b" * 100 + b"c" * ZERO_AHEAD_BYTES + b"d" * 500 + b"e" * 600
    appender.close()
