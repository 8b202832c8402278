"""Attack: a `wal_dir.json` in a received folder makes its reader send credentials or requests to a
server of the author's choice."""

from __future__ import annotations

import json
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.checks import location
from imap_wal.errors import StorageUnavailable
from imap_wal.placement import open_store
from imap_wal.security.credentials import Credentials
from pyspark_imap_wal import data_source
from rewrite_cli.cli import group
from storage_backends import Opening, SegmentStore, StorageError, factory
from storage_backends.location import Location, located, of_wal_dir, why_not_followed
from storage_backends.memory import MemoryStore, forget


def gift(folder: Path, wal_dir: str) -> Path:
    folder.mkdir()
    (folder / "wal_dir.json").write_text(json.dumps({"format": 1, "wal_dir": wal_dir}))
    return folder


@pytest.mark.parametrize(
    "wal_dir",
    [
        "s3://theirs/maps",
        "webhdfs://{server}/maps",
        "http://{server}/maps",
        "objects+file:///tmp/x",
        "simplecache::s3://theirs/maps",
        'file:///tmp/x?client_kwargs={{"endpoint_url": "http://{server}"}}',
        "memory://x",
        "s3://u:password@theirs/maps",
        "\x1b]0;title\x07://x",
    ],
)
def test_a_local_root_cannot_redirect_to_another_storage(tmp_path: Path, wal_dir: str) -> None:
    """Nothing is sent to the storage that it names."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        root = gift(
            tmp_path / "gift", wal_dir.format(server=f"127.0.0.1:{server.getsockname()[1]}")
        )
        with pytest.raises(StorageError, match="not used unless you name it") as found:
            open_store(str(root))
        assert "--wal-dir" in str(found.value)
        assert "\x1b" not in str(found.value)
        for command in (
            ["stat", str(root)],
            ["verify", str(root)],
            ["prune", str(root), "--yes"],
            ["doctor", str(root)],
        ):
            done = CliRunner().invoke(group, command)
            assert "not used" in done.output
        with pytest.raises(StorageUnavailable, match="not used unless you name it"):
            imap_wal.open(str(root), node="n")
        with pytest.raises(BlockingIOError):
            server.accept()  # no connection was made
    assert [path.name for path in root.iterdir()] == ["wal_dir.json"]


def test_a_wal_dir_that_the_user_names_is_followed(tmp_path: Path) -> None:
    root, wal = str(tmp_path / "root"), "memory://a-named-wal-dir"
    try:
        with imap_wal.open(root, node="n", wal_dir=wal) as store:
            store.map("m")["a"] = 1
        with pytest.raises(StorageUnavailable, match="not used unless you name it"):
            imap_wal.open(root, node="n")
        with imap_wal.open(root, node="n", wal_dir=wal) as store:
            assert store.map("m")["a"] == 1
        for command in (
            ["stat", root],
            ["verify", root],
            ["dump", root],
            ["export", root],
            ["doctor", root],
            ["rewrite", root],
        ):
            done = CliRunner().invoke(group, [*command, "--wal-dir", wal], catch_exceptions=False)
            assert done.exit_code == 0, f"{command}: {done.output}"
        reader = imap_wal.log.LogReader(root, cluster="embedded", node="n", wal_dir=wal)
        assert list(reader.read())
    finally:
        forget("a-named-wal-dir")


def test_on_the_same_kind_of_storage_the_root_is_followed(tmp_path: Path) -> None:
    root, wal = (tmp_path / "root").as_uri(), str(tmp_path / "fast")
    imap_wal.open(root, node="n", wal_dir=wal).close()
    with imap_wal.open(str(tmp_path / "root"), node="n") as store:
        store.map("m")["a"] = 1
    assert list((tmp_path / "fast").rglob("*.wal"))


@pytest.mark.parametrize(
    ("root", "wal_dir", "followed"),
    [
        ("/a", "/b", True),
        ("/a", "file:///b", True),
        ("s3://mine/a", "s3://other/b", True),
        ("s3://mine/a", "gs://mine/b", False),
        ("s3://mine/a", "/b", False),
        ("s3://mine/a", "s3://mine/b?endpoint_url=http://theirs", False),
        ("s3://mine/a", "s3://key:secret@mine/b", False),
        ("webhdfs://name-node:9870/a", "webhdfs://name-node:9870/b", True),
        ("webhdfs://name-node:9870/a", "webhdfs://theirs:9870/b", False),
        ("webhdfs://name-node:9870/a", "webhdfs://me@name-node:9870/b", False),
        ("abfs://c@mine.dfs.core.windows.net/a", "abfs://c@theirs.dfs.core.windows.net/b", False),
        ("/a", "/b?c", True),
    ],
)
def test_which_redirections_are_followed(root: str, wal_dir: str, followed: bool) -> None:
    """Only those to the same kind of storage, without options of their own."""
    assert (why_not_followed(Location(root), wal_dir) == "") is followed


def test_options_are_used_only_for_the_same_place() -> None:
    """Segments in another place get no options of the root."""
    root = Location("s3://mine/a", {"secret": "x"})
    assert of_wal_dir(root, Location("s3://mine/b")).options == {"secret": "x"}
    assert of_wal_dir(root, Location("s3://mine/b", {"secret": "y"})).options == {"secret": "y"}
    for other in ("s3://theirs/b", "gs://mine/b", "/b", "s3://mine.evil/b"):
        assert of_wal_dir(root, Location(other)).options == {}


def opened_with(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Place → the options that its store was opened with; every store is one in memory."""
    found: dict[str, dict[str, Any]] = {}
    stores: dict[str, MemoryStore] = {}

    def open_(opening: Opening) -> SegmentStore:
        found[str(opening.url)] = dict(opening.options)
        return stores.setdefault(str(opening.url), MemoryStore(f"w-links-{len(stores)}"))

    monkeypatch.setattr(factory, "open_backend", open_)
    return found


@pytest.mark.parametrize("named", [True, False])
def test_the_file_of_credentials_reaches_the_place_of_the_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    found = opened_with(monkeypatch)
    open_store("s3://slow/maps", wal_dir="s3://fast/wal")  # now the root says so, without options
    file = tmp_path / "credentials.toml"
    file.write_text(
        '["s3://slow"]\nkey = "a"\n["s3://fast"]\nkey = "b"\n["s3://other"]\nkey = "c"\n'
    )
    file.chmod(0o600)
    expected = {"s3://slow/maps": {"key": "a"}, "s3://fast/wal": {"key": "b"}}
    place = Credentials.read(file).given_to(
        Location("s3://slow/maps", wal_dir=Location("s3://fast/wal") if named else None)
    )
    open_store(location(place, file_mode="0600"))
    assert found == expected
    found.clear()
    open_store(pickle.loads(pickle.dumps(place)))
    assert found == expected
    found.clear()
    CliRunner().invoke(
        group,
        [
            "--credentials",
            str(file),
            "ls",
            "s3://slow/maps",
            *(["--wal-dir", "s3://fast/wal"] if named else []),
        ],
    )
    assert found == expected
    found.clear()
    monkeypatch.setenv("IMAP_WAL_CREDENTIALS", str(file))
    segments = Location("s3://fast/wal") if named else None
    open_store(data_source.known(Location("s3://slow/maps", wal_dir=segments)))
    assert found == expected
    found.clear()
    plain = located("s3://slow/maps?key=z").knowing({"s3://fast": {"key": "b"}})
    open_store(plain)  # the options of a URL win for the root, and are not those of another bucket
    assert found == {"s3://slow/maps": {"key": "z"}, "s3://fast/wal": {"key": "b"}}


def test_a_deeply_nested_record_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "wal_dir.json").write_bytes(b"[" * 100_000)
    with pytest.raises(StorageError, match="not JSON"):
        open_store(str(tmp_path))
