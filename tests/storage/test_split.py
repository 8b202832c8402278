"""`wal_dir`: segments in one place, everything else in another, and every open of the root finds
both."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.errors import StorageUnavailable
from imap_wal.placement import open_store
from imap_wal.placement.opening import RECORD, SegmentsPlace, record, recorded
from imap_wal.placement.router import SplitStore
from rewrite_cli.cli import group
from storage_backends import StorageError
from storage_backends.interface import StoredFile
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore, forget
from storage_backends.testing import check_segment_store


def test_a_split_store_keeps_every_promise(tmp_path: Path) -> None:
    def reopen() -> SplitStore:
        return SplitStore(LocalStore(str(tmp_path / "root")), MemoryStore(f"split-{tmp_path.name}"))

    try:
        check_segment_store(reopen(), reopen=reopen)
    finally:
        forget(f"split-{tmp_path.name}")


def test_only_segments_are_in_wal_dir(tmp_path: Path) -> None:
    """All the rest is under the root."""
    root, wal = (tmp_path / "root").as_uri(), (tmp_path / "fast").as_uri()
    with imap_wal.open(root, node="n", wal_dir=wal) as store:
        store.map("m").update({number: number for number in range(100)})
        files = {file.relative_to(tmp_path).parts[0] for file in tmp_path.rglob("*.wal")}
        assert files == {"fast"}
        assert not list((tmp_path / "fast").rglob("*.json"))
    # The root has a record of it: later opens need no `wal_dir`.
    with imap_wal.open(root, node="n") as store:
        assert len(store.map("m")) == 100
        store.archive()
        store.map("m")["more"] = 1
    assert [file.relative_to(tmp_path).parts[0] for file in tmp_path.rglob("*.parquet")] == ["root"]
    commands = (
        ["stat", root],
        ["verify", root],
        ["dump", root],
        ["rewrite", root],
        ["prune", root, "--yes"],
        ["verify", root],
    )
    for arguments in commands:
        done = CliRunner().invoke(group, arguments, catch_exceptions=False)
        assert done.exit_code == 0, f"{arguments}: {done.output}"
    with imap_wal.open(root, node="n", wal_dir=wal) as store:
        assert len(store.map("m")) == 101


def test_the_wal_dir_of_a_log_cannot_change(tmp_path: Path) -> None:
    root = (tmp_path / "root").as_uri()
    imap_wal.open(root, node="n", wal_dir=(tmp_path / "a").as_uri()).close()
    with pytest.raises(StorageUnavailable, match=r"are in file:.*/a"):
        imap_wal.open(root, node="n", wal_dir=(tmp_path / "b").as_uri())
    with imap_wal.open((tmp_path / "other").as_uri(), node="n") as store:
        store.map("m")["a"] = 1
    with pytest.raises(StorageUnavailable, match="already has segments under its root"):
        imap_wal.open((tmp_path / "other").as_uri(), node="n", wal_dir=(tmp_path / "b").as_uri())


def test_nodes_that_start_together_record_the_same_place(memory: MemoryStore) -> None:
    """Another node records the place and uploads a segment between two steps of this one."""

    class Root(MemoryStore):
        def list(self, folder: str) -> list[StoredFile]:
            record(memory, SegmentsPlace(own_disks=True))
            memory.create("namespace/cluster/nodes/other/wal/1.wal", b"")
            return super().list(folder)

    record(Root(memory.url.removeprefix("memory://")), SegmentsPlace(own_disks=True))
    assert recorded(memory) == SegmentsPlace(own_disks=True)


@pytest.mark.parametrize("wal_dir", ["{}/wal", "wal", "./wal", "{}/wal/", "file://{}/wal/"])
def test_another_process_opens_the_url_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wal_dir: str
) -> None:
    """The tasks of a rewrite do that, however the place of the segments was written."""
    monkeypatch.chdir(tmp_path)
    place = wal_dir.format(tmp_path)
    with imap_wal.open(str(tmp_path / "root"), node="n", wal_dir=place) as log:
        log.map("m")["a"] = 1
    for store in (open_store(tmp_path / "root"), open_store(tmp_path / "root", wal_dir=place)):
        sent = pickle.loads(pickle.dumps(store.url))
        again = open_store(sent)
        assert again.url == sent and list(again.list("")) == list(store.list(""))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 2, "wal_dir": "x"}', b"\xff"])
def test_a_damaged_record_of_the_wal_dir_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RECORD).write_bytes(content)
    with pytest.raises(StorageError, match=RECORD):
        open_store(tmp_path.as_uri())
