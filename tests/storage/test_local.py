"""Properties of a local directory only: files that appear whole, synced names, errors."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from storage_backends import (
    AlreadyExists,
    NoSpace,
    NotFound,
    StorageError,
    Unavailable,
    descriptors,
)
from storage_backends.local import LocalStore
from storage_backends.paths import TEMPORARY_PREFIX, sweep_below
from tests.kit.local import python, temporaries

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
        assert len(temporaries(tmp_path)) == 1
        assert store.list("") == []
        store.create("manifest/0.json", b"x")
        assert len(temporaries(tmp_path)) == 1, "the temporary file of a running process is kept"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not store.exists("manifest/1.json")
    assert [file.path for file in store.list("")] == ["manifest/0.json"]
    LocalStore(str(tmp_path)).create("manifest/2.json", b"y")
    assert temporaries(tmp_path) == []


SLEEPS = """
import os
from storage_backends import local
def stop(*_):
    print("ready", flush=True)
    sys.stdin.readline()
os.makedirs(sys.argv[1] + "/snapshot/m/2")
local.os.fsync = stop
local.LocalStore(sys.argv[1]).create("snapshot/m/2/part", b"half")
"""


def test_a_sweep_removes_what_is_left_below_a_folder(tmp_path: Path) -> None:
    """It removes neither what a running process writes, nor what is reached through a link."""
    for folder in ("snapshot/m/1", "snapshot/m/3", "other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"{TEMPORARY_PREFIX}00").write_bytes(b"left")
    (tmp_path / "snapshot" / "m" / "3" / "part").write_bytes(b"whole")
    (tmp_path / "snapshot" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "above").symlink_to(tmp_path / "snapshot")
    with python(SLEEPS, tmp_path) as process:
        sweep_below(str(tmp_path), "above/m")
        assert len(temporaries(tmp_path)) == 4
        sweep_below(str(tmp_path), "snapshot")
        assert {path.name for path in (tmp_path / "snapshot" / "m").iterdir()} == {"2", "3"}
        assert len(temporaries(tmp_path)) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
    sweep_below(str(tmp_path), "snapshot")
    sweep_below(str(tmp_path), "nothing/here")
    assert [path.name for path in (tmp_path / "snapshot" / "m").iterdir()] == ["3"]
    assert (tmp_path / "snapshot" / "m" / "3" / "part").read_bytes() == b"whole"
    assert temporaries(tmp_path / "other")


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
    assert temporaries(tmp_path) == []
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
    assert not (tmp_path / "root" / "a").exists(), "empty folders are removed"


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


def test_a_missing_right_names_the_user_of_the_process() -> None:
    for number in (errno.EACCES, errno.EPERM):
        text = str(descriptors.translate(OSError(number, os.strerror(number)), "a/b"))
        assert text.startswith(f"a/b: {os.strerror(number)} [")
        assert f"as user {os.geteuid()}" in text and "who owns the log" in text
