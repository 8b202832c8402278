"""Attack: put a file with a strange name, or something that is no file, into the folders of a log,
so that commands or opens stop or hang, or `repair` loses what is whole."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import imap_wal
from imap_wal import layout
from storage_backends.local import LocalStore
from tests.cli.conftest import Run, run
from tests.kit.effort import every

__all__ = ["run"]
NODE, CLUSTER = "default/embedded/nodes/n1", "default/embedded"
JUNK = b"of another program"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log of several segments in two epochs."""
    for first in (0, 60):
        with opened(tmp_path / "log") as store:
            for number in range(first, first + 60):
                store.map("m")[f"k{number}"] = "v" * 5000
    numbers = [each[1] for each in map(segment_of, segments(tmp_path / "log")) if each]
    assert len(numbers) > 3 and all(after == before + 1 for before, after in pairwise(numbers))
    return tmp_path / "log"


def opened(root: Path) -> imap_wal.Store:
    return imap_wal.open(
        f"file://{root}", node="n1", segment_bytes=65536, auto_rewrite_percentage=0
    )


def segments(root: Path) -> list[Path]:
    return sorted((root / NODE / "wal").glob("*.wal"))


def segment_of(path: Path) -> tuple[int, int] | None:
    return layout.parse_wal_path(f"{NODE}/wal/{path.name}")


def keys(root: Path) -> set[str]:
    with opened(root) as store:
        return set(store.map("m"))


ALL = {f"k{number}" for number in range(120)}


def wal_name(epoch: int, number: int, *by: int) -> str:
    """As `layout` names it, however large the numbers are."""
    return f"wal/{epoch:08d}-{number:08d}{''.join(f'.{each:08d}' for each in by)}.wal"


FAR = [2**31, 2**32 - 1, 2**63, 2**64, 10**30, 10**100, 20_000]
STRANGE = [
    *(wal_name(2, number) for number in FAR),
    *(wal_name(epoch, 3) for epoch in FAR),
    *(wal_name(epoch, 1) for epoch in FAR),
    *(wal_name(1, 1, by) for by in FAR),
    wal_name(2, 2),  # epoch 2 began later: the true segments would be void
    wal_name(1, 1, 2),  # as if a recovery had copied the first segment
    "wal/000000002-000000001.wal",
    "wal/00000001-00000001.000000002.wal",
    "wal/x00000002-00000001.wal",
    "wal/wal/00000009-00000001.wal",
    *(f"wal/{digit * 8}-{digit * 8}.wal" for digit in "²١１"),
    *(f"manifest/{number:010d}.json" for number in FAR),
    *(f"manifest/{digit * 10}.json" for digit in "²١１"),
    "manifest/900.json",
    "manifest/00000000900.json",
]


@every(56)
@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_name_stops_no_repair(root: Path, run: Run, name: str, tmp_path: Path) -> None:
    """The copy has all keys, and the report names the file, or the manifest in place of it."""
    file = root / NODE / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(JUNK)
    for words in (["verify"], ["stat"], ["ls"]):
        assert "bug" not in run(*words, root).err
    done = run("repair", root, "--to", f"file://{tmp_path}/copy", "-o", "json")
    assert done.code in (0, 3), done.err
    assert name.startswith("manifest") or any(
        each["file"] == f"{NODE}/{name}" for each in done.json["files"]
    )
    assert keys(tmp_path / "copy") == ALL


def test_a_repair_keeps_the_bytes_of_a_strange_segment(
    root: Path, run: Run, tmp_path: Path
) -> None:
    """They may be of this log after all."""
    name = wal_name(2, 20_000)
    (root / NODE / name).write_bytes(JUNK)
    done = run("repair", root, "--to", f"file://{tmp_path}/copy", "-o", "json")
    (item,) = [each for each in done.json["files"] if each["file"] == f"{NODE}/{name}"]
    assert done.code == 3 and "more than 10,000 above" in item["what"]
    assert (tmp_path / "copy" / NODE / f"lost/{Path(name).name}.foreign").read_bytes() == JUNK


@every(5)
@pytest.mark.parametrize(
    "name",
    [
        *(f"manifest/{digit * 10}.json" for digit in "²١１"),
        "manifest/900.json",
        "manifest/00000000900.json",
        f"manifest/{2**64}.json",
    ],
)
@pytest.mark.parametrize("folder", [NODE, CLUSTER])
def test_a_file_that_is_no_manifest_stops_no_open(root: Path, folder: str, name: str) -> None:
    """Its number is not written as the numbers of manifests are."""
    (root / folder / name).write_bytes(JUNK)
    assert keys(root) == ALL


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(".")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def many_loops(path: Path) -> None:
    path.mkdir()
    for number in range(3):
        (path / str(number)).symlink_to("..")


def unspeakable_folder(path: Path) -> None:
    (path.parent / "\x1b[2J").mkdir()


def folder_not_of_utf8(path: Path) -> None:
    os.mkdir(os.fsencode(path.parent) + b"/\xff\xfe")


SPECIAL = [
    fifo,
    listener,
    device,
    loop,
    link_to_itself,
    many_loops,
    unspeakable_folder,
    folder_not_of_utf8,
]
PLACES = [
    "strange",
    f"{CLUSTER}/manifest/0000000900.json",
    f"{CLUSTER}/nodes/strange",
    f"{NODE}/manifest/0000000900.json",
    f"{NODE}/wal/00000002-00000900.wal",
    f"{NODE}/wal/strange",
]


@every(17)
@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_stops_nothing(
    root: Path, run: Run, make: Callable[[Path], None], place: str, tmp_path: Path
) -> None:
    """A read of it would never return, or a walk through it never end."""
    make(root / place)
    for words in (["verify"], ["stat"], ["ls"], ["dump"]):
        done = run(*words, root)
        # `verify` may count a link among the nodes as a node without a log.
        assert done.code in (0, 3) and "bug" not in done.err, done.err
    assert run("repair", root, "--to", f"file://{tmp_path}/copy").code in (0, 3)
    assert keys(tmp_path / "copy") == ALL
    assert keys(root) == ALL


@pytest.mark.parametrize("make", [fifo, listener, device])
def test_no_read_waits_for_what_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Also under a name that is read without a listing."""
    make(tmp_path / "x")
    store = LocalStore(str(tmp_path))
    assert not store.exists("x") and store.list("") == []
    for read in reads(store):
        with pytest.raises(Exception, match=r"not a regular file|ENXIO"):
            read("x")


def reads(store: LocalStore) -> Iterator[Callable[[str], object]]:
    yield from (store.read, store.size, store.open_input)
