"""What repair copies, and when it refuses: one node, an open log, an interrupted repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.context import Context
from imap_wal.errors import ImapWalError
from imap_wal.inspect.inventory import looks_at
from imap_wal.placement import open_store
from imap_wal.repair.cluster import ClusterRepair
from imap_wal.repair.report import SALVAGE
from tests.cli.conftest import Ended, Run
from tests.kit.repairs import always, damaged_file, flip, frames, repair, store_of, values


def test_a_whole_log_is_copied_byte_for_byte(
    run: Run, url: str, root: Path, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    ended = run("repair", url, "--to", f"file://{tmp_path}/copy", "-o", "json")
    assert ended.code == 0
    assert ended.json["summary"]["given_up_records"] == 0
    for file in ended.json["files"]:
        assert file["action"] == "copied"
        assert (tmp_path / "copy" / file["file"]).read_bytes() == (root / file["file"]).read_bytes()
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert run("export", f"{tmp_path}/copy").out == run("export", url).out


def test_repair_copies_segments_under_one_root(run: Run, tmp_path: Path) -> None:
    """The copy has segments of another storage under its own root."""
    with imap_wal.open(
        f"file://{tmp_path}/log", node="n1", wal_dir=f"file://{tmp_path}/fast"
    ) as store:
        for key in range(5):
            store.map("m")[f"k{key}"] = key
    (segment,) = (tmp_path / "fast").rglob("*.wal")
    flip(segment, frames(segment)[1].offset + 30)
    assert damaged_file(repair(run, tmp_path))["kept"]["records"] == 4
    assert len(list((tmp_path / "copy").rglob("*.wal"))) == 1
    assert values(f"{tmp_path}/copy") == {f"k{key}": key for key in (0, 2, 3, 4)}


def test_a_copy_of_one_node_names_only_that_node(run: Run, url: str, tmp_path: Path) -> None:
    assert run("repair", url, "--node", "n2", "--to", f"file://{tmp_path}/copy").code == 0
    assert [line["key"] for line in run("export", f"{tmp_path}/copy").lines] == ["o4", "s1"]


def test_a_missing_node_stays_missing_and_is_named(
    run: Run, url: str, root: Path, tmp_path: Path
) -> None:
    (root / "prod/eu/nodes/n2").rename(root.parent / "elsewhere")
    ended = run("repair", url, "--to", f"file://{tmp_path}/copy")
    assert ended.code == 3
    assert "'n2'" in ended.out
    assert run("export", f"{tmp_path}/copy").code == 1
    assert run("export", f"{tmp_path}/copy", "--partial").code == 0


def test_a_repair_never_writes_into_what_is_there(run: Run, url: str, tmp_path: Path) -> None:
    for target in (url, f"file://{tmp_path}/other"):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other/notes.txt").write_text("mine")
        ended = run("repair", url, "--to", target)
        assert ended.code == 1
        assert "empty" in ended.err
    assert run("repair", url).code == 2


def test_a_log_that_is_being_written_is_not_repaired(run: Run, url: str, tmp_path: Path) -> None:
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1"):
        assert run("repair", url, "--to", f"file://{tmp_path}/copy").code == 4
        ended = run("repair", url, "--dry-run")
        assert ended.code == 0
        assert "is being written" in ended.err
    assert not (tmp_path / "copy").exists()


def test_a_newer_version_is_not_damage(run: Run, log: Path, tmp_path: Path) -> None:
    import struct

    import google_crc32c

    middle = sorted(log.glob("*.wal"))[1]
    data = bytearray(middle.read_bytes())
    data[8] = 9
    end = 12 + struct.unpack_from("<H", data, 10)[0]
    struct.pack_into("<I", data, end, google_crc32c.value(bytes(data[:end])))
    middle.write_bytes(data)
    ended = run("repair", tmp_path / "log", "--to", f"file://{tmp_path}/copy")
    assert ended.code == 1
    assert "upgrade" in ended.err
    assert not (tmp_path / "copy").exists()


def test_an_interrupted_repair_is_not_taken_for_a_log(run: Run, url: str, tmp_path: Path) -> None:
    assert run("rewrite", url).code == 0
    calls = []
    for stop in range(1000):
        target = open_store(f"file://{tmp_path}/copy{stop}")
        left = stop

        def create(path: str, data: Any, of: Callable[..., None]) -> None:
            nonlocal left
            if left == 0:
                raise InterruptedError
            left -= 1
            of(path, data)

        for name in ("create", "create_from"):
            of = getattr(target, name)
            setattr(target, name, lambda path, data, of=of: create(path, data, of))
        (view,) = looks_at(Context(store_of(url)))
        repair = ClusterRepair(Context(store_of(url)), view, SALVAGE, always, lambda _: None)
        repair.plan()
        try:
            repair.write(target)
            break
        except InterruptedError:
            calls.append(stop)
        if stop:
            for command in ("stat", "export", "restore"):
                assert run(command, f"{tmp_path}/copy{stop}").code == 1, stop
            with pytest.raises(ImapWalError):
                imap_wal.open(
                    f"file://{tmp_path}/copy{stop}", namespace="prod", cluster="eu", node="n1"
                ).close()
            ended: Ended = run("repair", url, "--to", f"file://{tmp_path}/copy{stop}")
            assert "did not finish" in ended.err
    assert len(calls) > 8
    assert run("export", f"{tmp_path}/copy{stop}").out == run("export", url).out
