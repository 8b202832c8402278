"""Attack: as another user of the machine, own or replace a file of keys, tokens or rights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imap_wal.agent.access import keys
from imap_wal.agent.access.peers import Peer, Right
from imap_wal.agent.transport.gate import new_pair
from imap_wal.errors import InvalidSetting
from imap_wal.security.credentials import Credentials
from imap_wal.security.encryption_keys import Keys
from imap_wal.security.secret_files import read_secret_file, read_trusted_file
from tests.encrypted import key

OTHER = 65534
PAIR = new_pair("agent-1")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give a file to another user"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder outside of pytest's folder, which other users cannot enter."""
    with tempfile.TemporaryDirectory(prefix="imap-wal-") as name:
        yield Path(name)


def write_key(path: Path) -> None:
    keys.write_new(path, PAIR.text(), 0o600)


def write_token(path: Path) -> None:
    keys.write_new(path, "t" * 64, 0o600)


def write_clients(path: Path) -> None:
    keys.write_clients(path, {PAIR.public: Peer("agent-1", frozenset(Right))})


def write_ring(path: Path) -> None:
    keys.write_new(path, key("a"), 0o600)


def write_credentials(path: Path) -> None:
    keys.write_new(path, '["s3://b"]\nkey = "k"\n', 0o600)


FILES = pytest.mark.parametrize(
    ("write", "read"),
    [
        (write_key, keys.read_secret),
        (write_token, keys.read_token),
        (write_clients, keys.read_clients),
        (write_ring, lambda path: Keys(f"file:{path}")),
        (write_credentials, Credentials.read),
    ],
    ids=["key", "token", "clients", "encryption keys", "credentials"],
)


@needs_root
@FILES
def test_a_secret_owned_by_another_user_is_refused(
    folder: Path, write: Callable[[Path], None], read: Callable[[Path], object]
) -> None:
    """This applies to the file and to each folder above it."""
    (folder / "a/b").mkdir(parents=True)
    file = folder / "a/b/file"
    write(file)
    read(file)
    for part in (file, folder / "a/b", folder / "a", folder):
        os.chown(part, OTHER, OTHER)
        with pytest.raises(InvalidSetting) as refused:
            read(file)
        assert (
            f"{part} belongs to user {OTHER}, not to root; check it, then run: chown -h 0 {part}"
            in str(refused.value)
        )
        os.chown(part, 0, 0)
    read(file)


@FILES
def test_a_folder_that_others_may_write_to_is_refused(
    folder: Path, write: Callable[[Path], None], read: Callable[[Path], object]
) -> None:
    (folder / "a/b").mkdir(parents=True)
    file = folder / "a/b/file"
    write(file)
    for part in (folder / "a/b", folder / "a"):
        for mode in (0o770, 0o707):
            part.chmod(mode)
            with pytest.raises(InvalidSetting) as refused:
                read(file)
            assert f"other users may write to the folder {part} (" in str(refused.value)
            assert str(refused.value).endswith(f"run: chmod go-w {part}")
        part.chmod(0o1777)  # as /tmp: no user can replace a file of another user
        read(file)
        part.chmod(0o755)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o660, 0o601, 0o610])
def test_a_secret_that_others_may_open_is_refused(folder: Path, mode: int) -> None:
    write_token(folder / "token")
    (folder / "token").chmod(mode)
    with pytest.raises(InvalidSetting, match=r"other users may open it .*; run: chmod go= "):
        read_secret_file(folder / "token")


def test_a_group_may_read_only_secrets_of_root(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another owner that its group may read is refused."""
    write_token(folder / "token")
    (folder / "token").chmod(0o440)
    if os.geteuid() == 0:
        assert read_secret_file(folder / "token") == b"t" * 64
        for part in (folder, folder / "token"):
            os.chown(part, OTHER, OTHER)
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with pytest.raises(InvalidSetting, match="other users may open it"):
        read_secret_file(folder / "token")


@needs_root
def test_a_secret_of_kubernetes_is_read_through_its_links(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = folder / "secrets"
    version = volume / "..2026_11_23"
    version.mkdir(parents=True)
    volume.chmod(0o3777)  # as the kubelet makes it
    write_token(version / "token")
    (version / "token").chmod(0o440)
    os.chown(version / "token", 0, 2000)  # fsGroup
    folder.chmod(0o755)
    (volume / "..data").symlink_to("..2026_11_23")
    (volume / "token").symlink_to("..data/token")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert keys.read_token(volume / "token") == "t" * 64


@needs_root
def test_a_link_of_another_user_is_not_followed(folder: Path) -> None:
    write_clients(folder / "clients.toml")
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "clients.toml"
    link.symlink_to(folder / "clients.toml")
    assert read_trusted_file(link)
    os.lchown(link, OTHER, OTHER)
    with pytest.raises(InvalidSetting, match=f"{link} belongs to user {OTHER}"):
        read_trusted_file(link)


def test_links_in_a_circle_end_with_an_error(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        read_secret_file(folder / "a")
    with pytest.raises(InvalidSetting, match="symbolic links"):
        keys.read_token(folder / "a")


def test_a_path_with_dots_and_a_pipe_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "x").mkdir()
    write_token(folder / "token")
    monkeypatch.chdir(folder / "x")
    assert keys.read_token("./../token") == "t" * 64
    ours, theirs = os.pipe()
    os.write(theirs, b"p" * 64)
    os.close(theirs)
    assert keys.read_token(f"/dev/fd/{ours}") == "p" * 64
    os.close(ours)
