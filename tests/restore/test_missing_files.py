"""A missing file of a manifest: every reader names it and the missing entries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.context import open_context
from imap_wal.errors import CorruptLog, ShortLog
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import LogReader
from imap_wal.read.view import MaterializedView
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends import NotFound
from tests.kit.effort import every

NODE = "default/embedded/nodes/n1"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A snapshot of map "a", and after it three archives of map "b" and one more change of "a"."""
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url, node="n1", preallocate=False) as store:
        store.map("a")["k"] = 1
    rewrite(ClusterLog(open_context(url), "default", "embedded"), LocalEngine())
    for number in range(3):
        with imap_wal.open(url, node="n1", preallocate=False) as store:
            store.map("b")[number] = number
            store.archive()
    with imap_wal.open(url, node="n1", preallocate=False) as store:
        store.map("a")["later"] = 2
    return url


def read_embedded(url: str) -> None:
    with imap_wal.open(url, node="n1") as store:
        dict(store.map("b").items())


def read_view(url: str) -> None:
    MaterializedView(log_of(url), Settings()).catch_up()


def read_changes(url: str) -> None:
    list(log_of(url).changes())


def read_rewriting(url: str) -> None:
    rewrite(log_of(url), LocalEngine())


def read_in_order(url: str) -> None:
    list(LogReader(url, cluster="embedded", node="n1").read())


def archive_again(url: str) -> None:
    with imap_wal.open(url, node="n1", preallocate=False) as store:
        store.map("b")["more"] = 1
        store.archive()


READERS: tuple[Callable[[str], Any], ...] = (read_embedded, read_view, read_changes, read_rewriting)


def log_of(url: str) -> ClusterLog:
    return ClusterLog(open_context(url), "default", "embedded")


def remove(url: str, path: str) -> str:
    (Path(url.removeprefix("file://")) / path).unlink()
    return path


@every(9)
@pytest.mark.parametrize("read", [*READERS, read_in_order, archive_again])
def test_missing_archive_is_named_with_its_entries(url: str, read: Callable[[str], Any]) -> None:
    archive = next(each for each in log_of(url).node("n1").manifest.archives if each.map == "b")
    path = remove(url, archive.path)
    with pytest.raises(ShortLog) as raised:
        read(url)
    assert raised.value.file == path
    assert f"entries of map 'b' from {archive.first} to {archive.last}" in str(raised.value)
    assert "bring it back from a copy" in str(raised.value)


@every(7)
@pytest.mark.parametrize("read", READERS)
def test_missing_snapshot_file_is_named_with_its_contents(
    url: str, read: Callable[[str], Any]
) -> None:
    manifest = log_of(url).manifest()
    snapshot = manifest.snapshots["a"]
    path = remove(url, snapshot.paths[0])
    with pytest.raises(ShortLog) as raised:
        read(url)
    assert raised.value.file == path
    assert (
        "1 keys of map 'a' as of the entries from the beginning to "
        f"{snapshot.marks['n1'].position} of node 'n1'" in str(raised.value)
    )
    assert "imap-wal repair" in str(raised.value)


def test_file_that_no_manifest_names_is_not_missing(url: str) -> None:
    """A file that no manifest names any more is not called missing."""
    error = NotFound("no such file", f"{NODE}/archive/b/of-an-earlier-manifest.parquet")
    assert log_of(url).lost(error) is error


def test_a_missing_segment_is_a_value_of_a_look(url: str) -> None:
    """A reader that needs a whole log makes an error of it."""
    log = log_of(url)
    assert log.look(everything=True).damage == log.look().damage == ()
    remove(url, log.node("n1").segments[0].path)
    for everything in (False, True):
        state = log.look(everything=everything)
        (damage,) = state.damage
        assert isinstance(damage, ShortLog) and state.nodes["n1"].damage == damage
        with pytest.raises(ShortLog, match="this segment is missing"):
            state.without_damage()
    with pytest.raises(ShortLog, match="this segment is missing"):
        log.state()


def test_a_look_at_everything_goes_past_a_damaged_manifest(url: str) -> None:
    log = log_of(url)
    number = log.look().nodes["n1"].number
    path = Path(url.removeprefix("file://")) / NODE / f"manifest/{number:010d}.json"
    path.write_bytes(b"damaged")
    state = log_of(url).look(everything=True)
    ((folder, errors),) = state.lost.items()
    assert folder == f"{NODE}/manifest"
    assert [error.file for error in errors] == [f"{folder}/{number:010d}.json"]
    assert state.folders[0].number == number - 1
    with pytest.raises(CorruptLog, match="not JSON"):
        log_of(url).look()
