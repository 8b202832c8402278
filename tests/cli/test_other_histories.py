"""Copies that commands write are other histories of a log, after what they share with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import imap_wal
from imap_wal import log
from imap_wal.context import Context
from imap_wal.entry import VALUE
from imap_wal.errors import ImapWalError, OtherHistory
from imap_wal.log import LogReader, Position
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.commands.reading.tail import LineFollower
from storage_backends.local import LocalStore
from tests.cli.conftest import Run
from tests.kit.actors import NODE
from tests.kit.effort import every
from tests.kit.nth_call import AtCall, counted, replaced


def _append(folder: Path, *values: int) -> None:
    with log.open(str(folder)) as opened:
        for value in values:
            opened.append("m", (b"k", b"%d" % value))


def _values(folder: Path, start: Position | str | None = None) -> list[bytes | None]:
    return [each.entry.value for each in LogReader(str(folder)).read(start)]


def test_a_restored_backup_refuses_what_it_lacks(tmp_path: Path, run: Run) -> None:
    """Also before it is opened."""
    here, backups, again = (str(tmp_path / name) for name in ("log", "backups", "again"))
    log.create(here).close()
    with log.open(here) as opened:
        first = opened.append("m", (b"k", b"0"))
        assert run("backup", here, backups).code == 0
        later = opened.append("m", (b"k", b"1"))
    assert run("backup-restore", backups, again).code == 0
    for values in ([], [b"2", b"3"]):
        if values:
            _append(Path(again), 2, 3)
        assert _values(Path(again), first.after()) == values
        for position in (later, later.after()):
            with pytest.raises(OtherHistory, match="restored") as raised:
                _values(Path(again), position)
            assert _values(Path(again), raised.value.oldest)[-2:] == values[-2:]


def test_a_repaired_copy_refuses_what_it_has_changed(tmp_path: Path, run: Run) -> None:
    """The positions after the damage are of other entries in the copy, or of none."""
    folder = tmp_path / "log"
    log.create(str(folder)).close()
    _append(folder, 0, 1)
    _append(folder, 2, 3)
    places = [each.position for each in LogReader(str(folder)).read()]
    segment = max((folder / "default/log/nodes/log/wal").glob("*.wal"))
    data = bytearray(segment.read_bytes())
    data[places[2].frame + 20] ^= 1
    segment.write_bytes(data)
    copy = tmp_path / "repaired"
    run("repair", str(folder), "--to", str(copy))
    assert _values(copy) == [b"0", b"1", b"3"]
    _append(copy, 4)
    assert _values(copy, places[1].after()) == [b"3", b"4"]
    for position in (places[2], places[3], places[3].after()):
        with pytest.raises(OtherHistory):
            _values(copy, position)
    for each in LogReader(str(copy)).read():
        assert next(LogReader(str(copy)).read(each.position)) == each


@every(3)
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_folder_of_another_copy_is_reported_and_repaired(
    tmp_path: Path, run: Run, snapshot: bool
) -> None:
    """Its entries are below the mark of the snapshot, which has those of the log's own folder.
    Without a snapshot, those are lost."""
    here, other = tmp_path / "log", tmp_path / "other"

    def write(root: Path, *keys: str) -> None:
        with imap_wal.open(root, node="n1", auto_rewrite_percentage=0) as store:
            store.map("m").update(dict.fromkeys(keys, 1))

    write(here, "both")
    shutil.copytree(here, other)
    write(here, "ours")
    write(here)
    write(other, "theirs")
    write(other, "later")
    assert not snapshot or run("rewrite", here).code == 0
    shutil.rmtree(here / NODE)
    shutil.copytree(other / NODE, here / NODE)
    for command in ("export", "restore", "rewrite", "prune"):
        ended = run(command, here)
        assert (ended.code, "of another copy of this log" in ended.err) == (1, True), ended.err
    for command in ("verify", "doctor"):
        ended = run(command, here)
        assert (ended.code, "of another copy of this log" in ended.out) == (3, True)
    copy = tmp_path / "copy"
    ended = run("repair", here, "--to", copy)
    assert (ended.code, "those of the snapshots" in ended.out) == (3, True)
    ours = {"ours"} if snapshot else set()
    assert {line["key"] for line in run("export", copy).lines} == {"both", "theirs", "later"} | ours
    assert run("verify", copy).code == 0


def test_a_position_of_removed_entries_is_no_other_history(tmp_path: Path, run: Run) -> None:
    def write(key: str) -> None:
        with imap_wal.open(tmp_path, node="n1", auto_rewrite_percentage=0) as store:
            store.map("m")[key] = 1

    write("a")
    [removed] = [line["position"] for line in run("dump", tmp_path, "-o", "json").lines]
    for key in "bc":
        write(key)
    assert run("rewrite", tmp_path).code == run("prune", tmp_path, "--yes").code == 0
    write("d")
    ended = run("dump", tmp_path, "--from", removed, "-o", "json")
    keys = [line["key"] for line in ended.lines]
    assert (ended.code, keys) == (0, ["c", "d"]), ended.err


def _followed(gate: AtCall) -> str:
    """What `imap-wal tail` has shown after three rounds."""
    follower = LineFollower(ClusterLog(Context(gate), "default", "log"), (), ())
    found = [line.row[VALUE] for line in follower.last(10)]
    for _ in range(2):
        found += [line.row[VALUE] for line in follower.new()]
    return b"".join(each or b"" for each in found).decode()


def test_a_log_replaced_at_any_call_of_a_follower(tmp_path: Path) -> None:
    folder, copy = tmp_path / "log", tmp_path / "copy"
    log.create(str(folder)).close()
    _append(folder, 0, 1)
    shutil.copytree(folder, copy)
    _append(folder, 2, 3)
    _append(copy, 4, 5, 6)
    first, then, ends = LocalStore(str(folder)), LocalStore(str(copy)), set()
    whole = counted(first)
    assert _followed(whole) == "0123"
    for number in range(whole.calls):
        try:
            found = _followed(replaced(first, then, number))
        except ImapWalError as error:
            ends.add(type(error).__name__)
        else:
            assert found in ("0123", "01456"), f"call {number}: {found}"
            ends.add(found)
    assert {"01456", "OtherHistory"} <= ends
