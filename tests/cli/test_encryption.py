"""Commands on an encrypted log: with its keys, with other keys, and with damage."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

import imap_wal
from imap_wal.context import Context, open_context
from imap_wal.layout import cluster_folder
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.readers import bases_of_history
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite import part_writer
from imap_wal.rewrite.ranges import borders_of
from imap_wal.security.encryption import archive_key
from imap_wal.segment.reader import SegmentReader
from storage_backends import open_store
from tests.cli.conftest import Run
from tests.encrypted import key, key_file, key_ring, other
from tests.kit.effort import every
from tests.kit.encrypted_maps import SECRET, content, forge_frame, killed
from tests.support import overwrite


@pytest.fixture
def place(tmp_path: Path) -> str:
    """An archive of 20 entries, and a segment with 20 more."""
    found = str(tmp_path / "root")
    with imap_wal.open(found, encryption_keys=key_file(tmp_path, "a")) as store:
        orders = store.map("orders")
        for number in range(20):
            orders[f"old-{number}"] = SECRET
        store.archive()
        for number in range(20):
            orders[f"new-{number}"] = SECRET
    return found


def keys(tmp_path: Path, *items: str) -> list[str]:
    return ["--encryption-keys", key_file(tmp_path, *items)]


def exported(run: Run, place: str, *given: str) -> int:
    done = run(*given, "export", place)
    assert done.code == 0, done.err
    return len(done.out.splitlines())


def test_commands_that_show_entries_take_the_keys(run: Run, place: str, tmp_path: Path) -> None:
    given = keys(tmp_path, "a")
    assert exported(run, place, *given) == 40
    assert SECRET in run(*given, "dump", place).out
    assert run(*given, "stat", place, "-o", "json").json
    for command in (("export", place), ("dump", place), ("stat", place), ("rewrite", place)):
        done = run(*command)
        assert (
            done.code == 1 and "no keys are given" in done.err and "--encryption-keys" in done.err
        ), command
        assert SECRET not in done.out


def test_the_variable_names_the_source_too(run: Run, place: str, tmp_path: Path) -> None:
    done = run("export", place, env={"IMAP_WAL_ENCRYPTION_KEYS": key_file(tmp_path, "a")})
    assert done.code == 0 and len(done.out.splitlines()) == 40


def test_a_wrong_key_source_is_never_shown(run: Run, place: str) -> None:
    """It is wrong usage."""
    done = run("--encryption-keys", key("a"), "export", place)
    assert done.code == 2 and "file:PATH" in done.err
    assert key("a").partition(":")[2] not in done.err


def test_verify_without_keys_still_finds_damage(run: Run, place: str, tmp_path: Path) -> None:
    """It reports what it could not check."""
    done = run("verify", place, "-o", "json")
    assert done.code == 0
    assert done.json["summary"]["unopened"] == 2 and done.json["summary"]["records"] == 40
    assert "only their checksums were verified" in run("verify", place).out
    assert run(*keys(tmp_path, "a"), "verify", place, "-o", "json").json["summary"]["unopened"] == 0
    disk = open_store(place)
    for end in (".wal", ".parquet"):
        path = [file.path for file in disk.list("") if file.path.endswith(end)][-1]
        data = bytearray(whole := disk.read(path))
        data[len(data) // 2] ^= 1
        overwrite(disk, path, bytes(data))
        done = run("verify", place, "-o", "json")
        assert done.code == 3
        assert [each["file"] for each in done.json["files"] if each["status"] == "corrupt"] == [
            path
        ]
        overwrite(disk, path, whole)


def test_verify_finds_a_forged_frame_and_repair_leaves_it_out(
    run: Run, place: str, tmp_path: Path
) -> None:
    given = keys(tmp_path, "a")
    disk = open_store(place)
    path, frame = forge_frame(disk, 5)
    following = len(list(SegmentReader(disk, path).whole_frames())) - 6
    assert run("verify", place).code == 0  # the checksum is right
    done = run(*given, "verify", place, "-o", "json")
    assert done.code == 3
    bad = [each for each in done.json["files"] if each["status"] == "corrupt"]
    assert [(each["file"], each["offset"], each["frames_after"]) for each in bad] == [
        (path, frame.offset, following)
    ]
    assert "forged or moved" in bad[0]["what"]
    copy = str(tmp_path / "copy")
    done = run(*given, "repair", place, "--to", copy)
    assert done.code == 3, done.err
    assert exported(run, copy, *given) == 39
    assert not any(SECRET.encode() in data for data in content(copy).values())
    assert run(*given, "verify", copy).code == 0


def test_verify_finds_another_key_under_one_id(run: Run, place: str, tmp_path: Path) -> None:
    done = run(*keys(tmp_path, other("a")), "verify", place, "-o", "json")
    assert done.code == 3
    assert any("is not the one it was written with" in each["what"] for each in done.json["files"])


def test_verify_names_what_is_not_encrypted_where_it_must_be(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path / "plain")
    with imap_wal.open(place) as store:
        store.map("orders")["k"] = SECRET
        store.archive()
        store.map("orders")["l"] = SECRET
    done = run(*keys(tmp_path, "a"), "verify", place, "-o", "json")
    assert (
        done.code == 3
        and sum("it is not encrypted" in each["what"] for each in done.json["files"]) == 2
    )
    assert run(*keys(tmp_path, "a", "plain"), "verify", place).code == 0


@every(4)
@pytest.mark.parametrize("damage", ["frame", "header", "both", "footer", "page"])
def test_repair_copies_readable_entries_of_a_damaged_encrypted_log(
    run: Run, place: str, tmp_path: Path, damage: str
) -> None:
    given = keys(tmp_path, "a")
    disk = open_store(place)
    path = [
        file.path
        for file in disk.list("")
        if file.path.endswith(".parquet" if damage in ("footer", "page") else ".wal")
    ][-1]
    data = bytearray(disk.read(path))
    if damage in ("frame", "both"):
        data[list(SegmentReader(disk, path).whole_frames())[3].offset + 40] ^= 1
    if damage in ("header", "both"):
        data[60] ^= 1  # after the segment's id
    if damage == "footer":
        data[-60] ^= 1
    if damage == "page":
        data[200] ^= 1
    overwrite(disk, path, bytes(data))
    copy = str(tmp_path / "copy")
    done = run("repair", place, "--to", str(tmp_path / "none"))
    assert done.code == 1 and "keys" in done.err
    done = run(*given, "repair", place, "--to", copy)
    lost = {"frame": 1, "both": 1, "header": 0, "footer": 20, "page": 20}[damage]
    assert done.code == (3 if lost else 0), done.err
    assert exported(run, copy, *given) == 40 - lost
    for name, found in content(copy).items():
        assert SECRET.encode() not in found, name
    assert run(*given, "verify", copy).code == 0
    with imap_wal.open(copy, encryption_keys=given[1]) as store:
        assert len(store.map("orders")) == 40 - lost


def test_verify_counts_former_snapshots_that_need_an_old_key(
    run: Run, place: str, tmp_path: Path
) -> None:
    """They are kept for the history: without the old key, the former moments cannot be read."""
    old, both, new = (keys(tmp_path, *names) for names in ("a", "ba", "b"))
    assert run(*old, "rewrite", place).code == 0
    assert run(*old, "prune", place, "--yes").code == 0
    assert run(*both, "rewrite", place, "--history", "1h").code == 0
    assert run(*both, "archive", place).code == 0
    assert run(*both, "prune", place, "--yes").code == 0

    def unopened() -> int:
        found = run(*new, "verify", place, "-o", "json").json["summary"]["unopened"]
        return int(found)

    before = unopened()
    former = {path for each in _kept(place) for path in each.files}
    assert former
    assert run(*both, "prune", place, "--yes", "--forget-reader", "history").code == 0
    assert unopened() <= before - len(former)


def _kept(place: str) -> list[Snapshot]:
    """The snapshots that only the history needs."""
    store = open_store(place)
    folder = cluster_folder("default", "embedded")
    now = ClusterLog(Context(store), "default", "embedded").manifest()
    (base,) = bases_of_history(store, folder)
    return [each for name, each in base.snapshots.items() if now.snapshots[name] != each]


def test_a_rewrite_encrypts_again_with_the_key_that_writes(
    run: Run, place: str, tmp_path: Path
) -> None:
    both, new = keys(tmp_path, "b", "a"), keys(tmp_path, "b")
    assert run(*keys(tmp_path, "a"), "rewrite", place).code == 0  # a snapshot with the old key
    # The steps of docs/how-to/encryption.md.
    assert run(*both, "archive", place).code == 0
    assert run(*both, "rewrite", place).code == 0
    assert run(*both, "prune", place, "--yes").code == 0
    assert exported(run, place, *new) == 40
    done = run(*new, "verify", place, "-o", "json")
    assert done.code == 0 and done.json["summary"]["unopened"] == 0
    again = run(*both, "rewrite", place, "-o", "json")
    assert again.code == 0 and exported(run, place, *new) == 40


def test_a_rewrite_names_a_damaged_snapshot(run: Run, place: str, tmp_path: Path) -> None:
    """Without a change of its map: it looks with which key the file was written."""
    given = keys(tmp_path, "a")
    assert run(*given, "rewrite", place).code == 0
    (file,) = Path(place).rglob("snapshot/orders/*/*.parquet")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    done = run(*given, "rewrite", place)
    assert done.code == 1 and "does not match the checksum in the manifest" in done.err
    assert "bug" not in done.err


def test_a_rewrite_skips_what_has_the_right_key(run: Run, place: str, tmp_path: Path) -> None:
    """It does not read these files again."""
    given = keys(tmp_path, "a")
    assert run(*given, "rewrite", place).code == 0
    before = {path for path in content(place) if "/snapshot/" in path}
    assert run(*given, "rewrite", place).code == 0
    assert {path for path in content(place) if "/snapshot/" in path} == before
    assert run(*keys(tmp_path, "b", "a"), "rewrite", place).code == 0
    assert {path for path in content(place) if "/snapshot/" in path} != before


def test_a_copy_that_restore_makes_is_encrypted(run: Run, place: str, tmp_path: Path) -> None:
    given, copy = keys(tmp_path, "b", "a"), str(tmp_path / "copy")
    assert run(*given, "restore", place, "--to", copy).code == 0
    assert not any(SECRET.encode() in data for data in content(copy).values())
    assert exported(run, copy, *keys(tmp_path, "b")) == 40


def test_an_encrypted_torn_tail_needs_no_keys(run: Run, tmp_path: Path) -> None:
    """It is a torn tail with and without its keys."""
    place = str(tmp_path / "torn")
    killed(place, key_file(tmp_path, "a"), b"\x99" * 50)
    for given in ([], keys(tmp_path, "a")):
        done = run(*given, "verify", place, "-o", "json")
        assert (done.code, done.json["summary"]["torn_tail"]) == (0, 1)
    assert run(*keys(tmp_path, other("a")), "verify", place).code == 3


def test_a_new_key_is_random_and_fits_into_the_file(run: Run, place: str, tmp_path: Path) -> None:
    first, second = (
        run("encryption-key", "new", "--id", "k"),
        run("encryption-key", "new", "--id", "k"),
    )
    assert first.code == 0 and first.out != second.out
    source = key_file(tmp_path, first.out.strip())
    fresh = str(tmp_path / "fresh")
    with imap_wal.open(fresh, encryption_keys=source) as store:
        store.map("orders")["k"] = SECRET
    assert exported(run, fresh, "--encryption-keys", source) == 1
    assert run("encryption-key", "new", "--id", "a b").code == 2
    assert run("encryption-key", "new").out[:2] == "20"


def test_duckdb_reads_archives_with_the_printed_key(run: Run, place: str, tmp_path: Path) -> None:
    """The command prints the key."""
    given = keys(tmp_path, "b", "a")
    printed = run(*given, "encryption-key", "parquet", "-o", "json").json
    assert printed == {
        "active": "b",
        "keys": {
            name: base64.b64encode(archive_key(key_ring(name).keys[name])).decode()
            for name in ("b", "a")
        },
    }
    archives = f"{place}/default/embedded/nodes/embedded/archive/orders/*.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"PRAGMA add_parquet_key('wal', '{printed['keys']['a']}')")
        connection.execute(f"PRAGMA add_parquet_key('other', '{printed['keys']['b']}')")
        sql = (
            "SELECT count(*), count(DISTINCT key), any_value(map) FROM "
            f"read_parquet('{archives}'%s)"
        )
        assert connection.execute(sql % ", encryption_config = {footer_key: 'wal'}").fetchall() == [
            (20, 20, "orders")
        ]
        for wrong in ("", ", encryption_config = {footer_key: 'other'}"):
            with pytest.raises(duckdb.Error):
                connection.execute(sql % wrong).fetchall()
    assert run("encryption-key", "parquet").code == 2


@pytest.mark.parametrize(
    ("text", "says"), [(None, "No such file"), ("", "has no keys"), ("a:b", "item 1")]
)
def test_the_check_of_an_agent_reads_its_keys(
    run: Run, tmp_path: Path, text: str | None, says: str
) -> None:
    """It names the file of keys, before a restart finds the mistake."""
    keys = tmp_path / "keys"
    if text is not None:
        keys.touch(mode=0o600)
        keys.write_text(text)
    config = tmp_path / "agent.toml"
    config.write_text(f'url = "{tmp_path}/log"\n[log]\nencryption_keys = "file:{keys}"\n')
    ended = run("agent", "--config", str(config), "--check")
    assert ended.code == 2 and says in ended.err and str(keys) in ended.err


def test_no_manifest_has_the_start_of_a_key(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The borders between files of a snapshot are encrypted, and a rewrite still keeps files."""
    monkeypatch.setattr(part_writer, "PART_ROWS", 4)
    root = str(tmp_path / "root")
    expected = {f"secret-{number:03d}": 0 for number in range(40)}
    snapshots: list[Snapshot] = []
    for turn, items in enumerate([("a",), ("a",), ("b", "a"), ("b",)]):
        source = key_file(tmp_path, *items)
        with imap_wal.open(root, encryption_keys=source, auto_rewrite_percentage=0) as store:
            changes = expected if turn == 0 else {"secret-005": turn}
            store.map("orders").update(changes)
            expected |= changes
            assert dict(store.map("orders")) == expected
        assert run("--encryption-keys", source, "rewrite", root).code == 0
        log = ClusterLog(open_context(root, keys=source), "default", "embedded")
        snapshots.append(log.manifests.read()[1].snapshots["orders"])
        assert len(snapshots[-1].files) >= 10
        assert borders_of(snapshots[-1], log.context.keys) is not None
    first, second, last = snapshots[0], snapshots[1], snapshots[-1]
    borders = [{file.border for file in each.files} for each in (first, second)]
    assert len({*first.paths} & {*second.paths}) >= 8, "most files are kept"
    assert len(borders[0] & borders[1]) >= 8
    assert all(file.border.startswith("b:") for file in last.files[1:])
    assert borders_of(first, log.context.keys) is None, "its key is gone"
    files = Listed(file._replace(border=file.border[:-6]) for file in last.files)
    damaged = replace(last, files=files)
    assert borders_of(damaged, log.context.keys) is None
    for file in Path(root).rglob("*.json"):
        assert b"secret" not in file.read_bytes(), file
        assert b"secret-".hex().encode() not in file.read_bytes(), file
