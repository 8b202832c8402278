"""On a network file system, the server decides whether a file exists, and not a cache."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from storage_backends import descriptors, local
from storage_backends.local import LocalStore
from storage_backends.local_listing import is_network

TABLE = r"""21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 21 0:40 / /mnt/shared rw,relatime shared:20 - nfs4 server:/export rw,vers=4.2
41 21 0:41 / /mnt/shared/local rw - xfs /dev/vdb rw
42 21 0:42 / /mnt/with\040blank rw - cifs //server/share rw
43 21 0:43 / /mnt/bucket rw - fuse.s3fs s3fs rw
"""


@pytest.mark.parametrize(
    ("folder", "network"),
    [
        ("/", False),
        ("/var/lib/maps", False),
        ("/mnt/shared", True),
        ("/mnt/shared/maps/prod", True),
        ("/mnt/shared-not", False),
        ("/mnt/shared/local/maps", False),
        ("/mnt/with blank/maps", True),
        ("/mnt/bucket/maps", True),
    ],
)
def test_the_longest_mount_point_says_which_file_system_it_is(
    tmp_path: Path, folder: str, network: bool
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    assert is_network(folder, table) is network
    assert is_network(folder, tmp_path / "no-table") is False


def test_network_file_presence_is_checked_by_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system."""
    monkeypatch.setattr(local, "is_network", lambda folder: True)
    store = LocalStore(str(tmp_path))
    store.create("there", b"")
    opened: list[str] = []
    real = os.open

    def open_(path: str, *arguments: int) -> int:
        opened.append(path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(
        os, "stat", lambda *arguments: pytest.fail("a stat may be answered from a cache")
    )
    assert store.exists("there") and not store.exists("gone")
    assert opened == [str(tmp_path / "there"), str(tmp_path / "gone")]


@pytest.mark.parametrize("statx", [descriptors._statx, None, lambda *arguments: -1])
def test_a_replaced_file_is_found_with_and_without_statx(
    statx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "_statx", statx)
    store = LocalStore(str(tmp_path))
    store.create("földer/a", b"")
    held = store.hold("földer/a")
    assert held.is_there()
    (tmp_path / "földer").rename(tmp_path / "moved")
    assert not held.is_there()
    shutil.copytree(tmp_path / "moved", tmp_path / "földer")
    assert not held.is_there()
    held.close()


@pytest.mark.skipif(descriptors._statx is None, reason="the C library has no statx")
def test_a_check_does_not_ask_for_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next write would have to change the inode."""
    with closing(LocalStore(str(tmp_path)).open_append("a")) as appender:
        monkeypatch.setattr(os, "stat", lambda *arguments: pytest.fail("a stat asks for times"))
        assert appender.is_there()
