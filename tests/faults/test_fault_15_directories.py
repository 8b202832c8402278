"""Fault 15: an empty directory, foreign files, a read-only directory, symbolic links, a manifest
that cannot be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import ImapWalError
from tests.kit.effort import every
from tests.kit.faults import Cases, _context
from tests.kit.folders import files

NOBODY = 65534


def written(root: Path, **options: Any) -> None:
    with imap_wal.open(root.as_uri(), node="n", **options) as store:
        store.map("m").update({"a": 1, "b": 2})


def read(root: Path) -> dict[Any, Any]:
    with imap_wal.open(root.as_uri(), node="n") as store:
        return dict(store.map("m").items())


def _unprivileged(root: str, works: list[Callable[[str], None]], answer: Any) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    for work in works:
        try:
            work(root)
            answer.send("done")
        except BaseException as error:
            answer.send(f"{type(error).__name__}: {error}")


def unprivileged(root: Path, *works: Callable[[str], None]) -> list[str]:
    """The outcomes in a process without root's rights."""
    ours, theirs = _context.Pipe(duplex=False)
    child = _context.Process(target=_unprivileged, args=(str(root), list(works), theirs))
    child.start()
    theirs.close()
    answers = [ours.recv() for _ in works]
    child.join(30)
    return answers


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="imap-wal-test-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def open_and_put(root: str) -> None:
    with imap_wal.open(f"file://{root}", node="n") as store:
        store.map("m")["c"] = 3


def open_alone(root: str) -> None:
    imap_wal.open(f"file://{root}", node="n").close()


@pytest.mark.parametrize(
    "levels", ["", "default", "default/embedded/nodes/n", "default/embedded/nodes/n/wal"]
)
def test_an_empty_directory_is_an_empty_log(tmp_path: Path, cases: Cases, levels: str) -> None:
    """Fault 15."""
    (tmp_path / "log" / levels).mkdir(parents=True)
    assert read(tmp_path / "log") == {}
    written(tmp_path / "log")
    assert read(tmp_path / "log") == {"a": 1, "b": 2}
    cases(1)


FOREIGN = (
    "notes.txt",
    ".hidden",
    "default/embedded/nodes/n/wal/copy.wal.bak",
    "default/embedded/nodes/n/wal/1-1.wal",
    "default/embedded/nodes/n/manifest/x.json",
    "default/embedded/manifest/README",
    "default/embedded/nodes/n/archive/notes.txt",
    "default/embedded/nodes/stray",
    "lost+found/x",
    "default/embedded/snapshot/m/notes.txt",
)


@every(3)
@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_left_alone_and_does_not_disturb(
    tmp_path: Path, cases: Cases, name: str
) -> None:
    """Fault 15: through open, put, archive and reopen."""
    root = tmp_path / "log"
    written(root)
    foreign = root / name
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_bytes(b"mine")
    with imap_wal.open(root.as_uri(), node="n") as store:
        store.map("m")["c"] = 3
        store.archive()
    assert read(root) == {"a": 1, "b": 2, "c": 3}
    assert foreign.read_bytes() == b"mine"
    cases(1)


def test_a_read_only_directory_is_never_changed(common: Path, cases: Cases) -> None:
    """It is reported as unavailable.
    Fault 15: the whole log belongs to another user."""
    root = common / "log"
    written(root)
    before = files(root)
    for path in root.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root.chmod(0o555)
    (answer,) = unprivileged(root, open_and_put)
    assert answer.startswith("StorageUnavailable") and "Permission denied" in answer
    assert files(root) == before
    for path in [root, *root.rglob("*")]:
        path.chmod(0o777)
    assert read(root) == {"a": 1, "b": 2}
    cases(1)


def test_a_place_where_nothing_can_be_made_is_unavailable(common: Path, cases: Cases) -> None:
    """Fault 15: an empty read-only directory."""
    root = common / "log"
    root.mkdir(mode=0o555)
    root.chmod(0o555)
    answers = unprivileged(root, open_alone, open_and_put)
    assert all(
        answer.startswith("StorageUnavailable") and "Permission denied" in answer
        for answer in answers
    ), answers
    assert list(root.iterdir()) == []
    cases(1)


@pytest.mark.parametrize(
    "folder",
    [
        "default/embedded/nodes/n/manifest",
        "default/embedded/manifest",
        "default/embedded/nodes/n/wal",
    ],
)
def test_an_unwritable_folder_fails_and_frees_the_lock(
    common: Path, cases: Cases, folder: str
) -> None:
    """The folder of the manifest or of the log: the open or the put fails.
    Fault 15: one folder of the log cannot be written; when it can, work continues."""
    root = common / "log"
    written(root)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o777)
    (root / folder).chmod(0o555)
    before = files(root / folder)
    answers = unprivileged(root, open_and_put, open_and_put)
    assert all(
        answer.startswith(("StorageUnavailable", "NotAppended")) and "Permission denied" in answer
        for answer in answers
    ), answers
    assert files(root / folder) == before
    (root / folder).chmod(0o777)
    assert unprivileged(root, open_and_put) == ["done"], "nothing was left locked"
    for path in [root, *root.rglob("*")]:
        path.chmod(0o777)
    assert read(root) == {"a": 1, "b": 2, "c": 3}
    cases(1)


@pytest.mark.parametrize(
    "linked",
    ["log", "log/default", "log/default/embedded/nodes/n", "log/default/embedded/nodes/n/wal"],
)
def test_a_symbolic_link_can_replace_a_directory(tmp_path: Path, cases: Cases, linked: str) -> None:
    """The files are in the target of the link.
    Fault 15: the log is on another disk."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / linked).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / linked).symlink_to(elsewhere, target_is_directory=True)
    root = tmp_path / "log"
    written(root)
    with imap_wal.open(root.as_uri(), node="n") as store:
        store.map("m")["c"] = 3
        if not linked.endswith("wal"):  # an archive deletes an empty folder, but not a link
            store.archive()
    assert read(root) == {"a": 1, "b": 2, "c": 3}
    assert any(elsewhere.rglob("*"))
    cases(1)


def test_two_names_of_one_directory_share_a_lock(tmp_path: Path, cases: Cases) -> None:
    """They are one log.
    Fault 15: by a link the same log is not written twice."""
    (tmp_path / "log").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "log", target_is_directory=True)
    with imap_wal.open((tmp_path / "log").as_uri(), node="n"), pytest.raises(imap_wal.WriterLocked):
        imap_wal.open((tmp_path / "link").as_uri(), node="n")
    cases(1)


@pytest.mark.parametrize(
    "place", ["wal/00000001-00000009.wal", "manifest/0000000099.json", "archive/m/x.parquet"]
)
def test_a_dangling_symbolic_link_loses_nothing(tmp_path: Path, cases: Cases, place: str) -> None:
    """The link is among the files. It is reported or left alone.
    Fault 15."""
    root = tmp_path / "log"
    written(root)
    link = root / "default/embedded/nodes/n" / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "nowhere")
    try:
        assert read(root) == {"a": 1, "b": 2}
    except ImapWalError:
        link.unlink()
        assert read(root) == {"a": 1, "b": 2}
    cases(1)
