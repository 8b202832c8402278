"""What only a local directory does: processes that die, locks of the kernel, full disks, stale
temporary files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_backends import (
    AlreadyExists,
    Locked,
    NoSpace,
    NotFound,
    StorageError,
    Unavailable,
    descriptors,
)
from storage_backends.descriptors import ZERO_AHEAD_BYTES
from storage_backends.local import TEMPORARY_PREFIX, LocalStore

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another process running `code`; it has said something on its output when this goes on."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}",
            *map(str, arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children too
        process.communicate()


LOCKS = """
from storage_backends.local import LocalStore
lock = LocalStore(sys.argv[1]).lock("node/writer.lock", "agent pid 4711 on host b")
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_killed_holder_frees_the_lock(
    tmp_path: Path,
) -> None:
    """A second process sees who holds the lock, and gets it after the kill."""
    store = LocalStore(str(tmp_path))
    with python(LOCKS, tmp_path) as process:
        with pytest.raises(Locked, match="agent pid 4711 on host b") as caught:
            store.lock("node/writer.lock", "me")
        assert caught.value.holder == "agent pid 4711 on host b"
        process.send_signal(signal.SIGKILL)
        process.wait()
        with store.lock("node/writer.lock", "me"), pytest.raises(Locked, match="held by me"):
            store.lock("node/writer.lock", "another")


def test_lock_taken_from_a_living_process_stays_taken(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    with python(LOCKS, tmp_path) as process:
        taken = store.lock("node/writer.lock", "taker", take=True)
        process.kill()
        process.wait()
        with pytest.raises(Locked, match="held by taker"):
            store.lock("node/writer.lock", "third")
        taken.release()
        store.lock("node/writer.lock", "third").release()


def test_child_killed_after_fork_releases_its_lock(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        store.lock("writer.lock", f"child {os.getpid()}")
        os.write(write, b"x")
        time.sleep(60)
        os._exit(1)
    os.read(read, 1)
    with pytest.raises(Locked, match=f"child {child}"):
        store.lock("writer.lock", "parent")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    store.lock("writer.lock", "parent").release()
    os.close(read)
    os.close(write)


FORKS = """
import os, time
from storage_backends.local import LocalStore
lock = LocalStore(sys.argv[1]).lock("writer.lock", "parent")
if os.fork() == 0:
    lock.release()      # the child's copy is not a lock: letting go of it must not free the parent's
    print("ready", flush=True)
    time.sleep(60)
    os._exit(0)
sys.stdin.readline()
"""  # noqa: E501


def test_forked_child_leaves_its_parents_lock_alone(tmp_path: Path) -> None:
    """It neither keeps nor frees it."""
    store = LocalStore(str(tmp_path))
    with python(FORKS, tmp_path) as process:
        with pytest.raises(Locked, match="held by parent"):
            store.lock("writer.lock", "other")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        store.lock("writer.lock", "other").release()  # while the child lives on


def test_forked_child_cannot_write_into_the_segment_of_its_parent(tmp_path: Path) -> None:
    appender = LocalStore(str(tmp_path)).open_append("1.wal")
    appender.append(b"parent")
    child = os.fork()
    if child == 0:
        try:
            appender.append(b"child")
        except Unavailable:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    appender.append(b" again")
    assert (tmp_path / "1.wal").read_bytes() == b"parent again"
    appender.close()


def _race_for_lock(root: str, start: Any, results: Any) -> None:
    store = LocalStore(root)
    start.wait()
    for _ in range(50):
        try:
            lock = store.lock("writer.lock", f"pid {os.getpid()}")
        except Locked:
            continue
        marker = os.open(
            os.path.join(root, "inside"), os.O_CREAT | os.O_EXCL
        )  # a second holder at this moment would fail here
        os.close(marker)
        os.unlink(os.path.join(root, "inside"))
        lock.release()
        results.put(1)


def test_racing_processes_never_share_a_lock(tmp_path: Path) -> None:
    """They hold it one at a time."""
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(4), context.SimpleQueue()
    processes = [
        context.Process(target=_race_for_lock, args=(str(tmp_path), start, results))
        for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert not results.empty()


def test_lock_file_exchanged_between_open_and_flock_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    real, taken = fcntl.flock, list[Any]()

    def flock(fd: int, operation: int) -> None:
        if not taken:
            taken.append(None)
            taken[0] = LocalStore(str(tmp_path)).lock("writer.lock", "quicker", take=True)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(Locked, match="held by quicker"):
        store.lock("writer.lock", "slower")


# publishing


def _temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(f"{TEMPORARY_PREFIX}*")]


CREATES = """
import os
from storage_backends import local
def stop(*_):
    print("ready", flush=True)
    sys.stdin.readline()
os.mkdir(sys.argv[1] + "/manifest")
setattr(local.os, sys.argv[2], stop)      # killed at the last moment before the name appears
local.LocalStore(sys.argv[1]).create("manifest/1.json", b"half")
"""


@pytest.mark.parametrize("at", ["fsync", "link"])
def test_a_killed_create_shows_nothing(tmp_path: Path, at: str) -> None:
    """The files that it leaves are swept."""
    store = LocalStore(str(tmp_path))
    with python(CREATES, tmp_path, at) as process:
        assert len(_temporaries(tmp_path)) == 1
        assert store.list("") == []
        store.create("manifest/0.json", b"x")
        assert len(_temporaries(tmp_path)) == 1, "the temporary file of a living process stays"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not store.exists("manifest/1.json")
    assert [file.path for file in store.list("")] == ["manifest/0.json"]
    LocalStore(str(tmp_path)).create("manifest/2.json", b"y")
    assert _temporaries(tmp_path) == []


def test_failed_create_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))

    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(Unavailable, match="Input/output error"):
        store.create("a/1", b"x")
    monkeypatch.undo()
    assert _temporaries(tmp_path) == []
    assert not store.exists("a/1")
    store.create("a/1", b"x")


def test_every_new_folder_and_every_name_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    store = LocalStore(str(tmp_path / "root"))
    store.create("a/b/1", b"x")
    root = str(tmp_path / "root")
    assert {str(tmp_path), root, f"{root}/a", f"{root}/a/b"} <= set(synced)
    assert synced.index(str(tmp_path)) < synced.index(f"{root}/a/b")
    synced.clear()
    store.open_append("a/b/2").close()
    assert synced == [f"{root}/a/b/2", f"{root}/a/b"], "a folder that is known costs one sync"
    synced.clear()
    LocalStore(root).replace("a/b/1", b"y")
    assert {f"{root}/a", f"{root}/a/b", root} <= set(synced), (
        "another process does not rely on the syncs of the first"
    )
    synced.clear()
    store.delete("a/b/2")
    assert synced == [f"{root}/a/b"]
    synced.clear()
    store.delete("a/b/1")
    assert synced == [f"{root}/a/b", f"{root}/a", root]
    assert not (tmp_path / "root" / "a").exists(), "folders that are left empty go"


def test_concurrent_creates_and_deletions_never_fail(tmp_path: Path) -> None:
    """They are in one folder."""
    errors: list[BaseException] = []

    def run(writer: int) -> None:
        store = LocalStore(str(tmp_path))
        try:
            for number in range(150):
                store.create(f"deep/er/{writer}-{number}", b"x")
                store.delete(f"deep/er/{writer}-{number}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert LocalStore(str(tmp_path)).list("") == []


def test_listing_leaves_out_what_is_not_ours(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "x").touch()
    store.create("a", b"")
    assert [file.path for file in store.list("")] == ["a"]
    assert store.folders("") == []


def test_a_name_too_long_is_a_storage_error(tmp_path: Path) -> None:
    """The file system does not accept its length."""
    with pytest.raises(Unavailable, match="File name too long"):
        LocalStore(str(tmp_path)).create("x" * 300, b"")


def test_file_where_a_folder_should_be(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.create("a", b"")
    assert not store.exists("a/b")
    with pytest.raises(StorageError):
        store.create("a/b", b"")


# appending


def test_append_goes_on_after_a_short_write(
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
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        (folder / "full").symlink_to("/dev/full")
    try:
        yield folder
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_no_space_and_nothing_half_done_stays(full_disk: Path) -> None:
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
    assert _temporaries(full_disk) == []
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
            except StorageError:
                code = 42 if appender.size == 0 else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_errors_of_the_operating_system_become_ours() -> None:
    for number, kind in (
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.ENOENT, NotFound),
        (errno.EEXIST, AlreadyExists),
        (errno.EIO, Unavailable),
        (errno.EACCES, Unavailable),
        (errno.EROFS, Unavailable),
    ):
        error = descriptors.translate(OSError(number, os.strerror(number)), "a/b")
        assert type(error) is kind
        assert os.strerror(number) in str(error)
        assert error.path == "a/b"


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
