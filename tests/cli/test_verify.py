"""verify: every kind of damage has its status, its place and its exit code."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.errors import MissingNode
from imap_wal.inspect.finding import Deadline
from imap_wal.inspect.inventory import take_inventory
from imap_wal.inspect.verify import check, foreign_files, plan
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.node import NodeManifestLog
from storage_backends import open_store
from storage_backends.objects import LocalObjects
from tests.cli.conftest import Run
from tests.kit.effort import every, share, thorough


def statuses(found: Any) -> dict[str, str]:
    return {
        Path(file["file"]).name: file["status"]
        for file in found["files"]
        if file["status"] != "clean"
    }


def test_a_whole_log_is_clean(run: Run, url: str) -> None:
    ended = run("verify", url, "-o", "json")
    assert ended.code == 0
    assert ended.json["summary"]["corrupt"] == 0
    assert ended.json["summary"]["records"] == 15
    assert "no damage" in run("verify", url).out


def test_a_flipped_bit_before_whole_frames_is_corruption(
    run: Run, url: str, newest_segment: Path
) -> None:
    data = bytearray(newest_segment.read_bytes())
    data[-60] ^= 1
    newest_segment.write_bytes(data)
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    assert statuses(ended.json) == {newest_segment.name: "corrupt"}
    (file,) = [file for file in ended.json["files"] if file["status"] == "corrupt"]
    assert file["offset"] is not None
    assert file["first_lost"].startswith("0000000")
    assert newest_segment.name in run("verify", url).out


def test_every_byte_is_under_a_checksum(run: Run, url: str, newest_segment: Path) -> None:
    whole = newest_segment.read_bytes()
    for offset in range(0, len(whole), 7):
        data = bytearray(whole)
        data[offset] ^= 0x10
        newest_segment.write_bytes(data)
        assert run("verify", url).code in (3, 0 if offset >= len(whole) - 60 else 3), offset
    newest_segment.write_bytes(whole)
    assert run("verify", url).code == 0


def torn(url: str, root: Path, node: str) -> Path:
    """The segment of a killed writer, without the end of its last commit."""
    import os
    import signal
    import subprocess
    import sys

    program = (
        f"import imap_wal, os, signal; s = imap_wal.open({url!r}, namespace='prod', "
        f"cluster='eu', node={node!r}, shared=True); s.map('orders')['x'] = 1; "
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    segment = max((root / "prod/eu/nodes" / node / "wal").glob("*.wal"))
    os.truncate(segment, len(segment.read_bytes().rstrip(b"\0")) - 3)
    return segment


def test_torn_tails_are_counted_in_words(run: Run, url: str, root: Path) -> None:
    torn(url, root, "n1")
    assert ", 1 torn tail: " in run("verify", url).out
    torn(url, root, "n2")
    assert ", 2 torn tails: " in run("verify", url).out


def test_an_incomplete_last_commit_is_no_damage(run: Run, url: str, root: Path) -> None:
    """It is a torn tail."""
    import os

    segment = torn(url, root, "n1")
    ended = run("verify", url, "-o", "json")
    assert ended.code == 0
    assert statuses(ended.json) == {segment.name: "torn-tail"}
    # Nothing shows whether that commit was acknowledged: it was, and then its end was cut off.
    said = f"{ended.out}{run('doctor', url).out}"
    assert "nothing acknowledged is lost" not in said
    assert " ".join(said.split()).count("damage to an acknowledged last commit looks the same") == 2
    os.truncate(segment, 0)  # the manifest knows it: it had frames
    assert statuses(run("verify", url, "-o", "json").json) == {segment.name: "corrupt"}


def test_an_empty_older_segment_is_damage(
    run: Run, url: str, root: Path, newest_segment: Path
) -> None:
    newest_segment.write_bytes(b"")
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    assert statuses(ended.json) == {newest_segment.name: "corrupt"}


def test_a_newer_version_is_unsupported_not_corrupt(
    run: Run, url: str, newest_segment: Path
) -> None:
    import struct

    import google_crc32c

    data = bytearray(newest_segment.read_bytes())
    data[8] = 9
    end = 12 + struct.unpack_from("<H", data, 10)[0]
    struct.pack_into("<I", data, end, google_crc32c.value(bytes(data[:end])))
    newest_segment.write_bytes(data)
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    assert statuses(ended.json) == {newest_segment.name: "unsupported"}


def test_a_missing_archive_and_a_missing_segment_are_named(
    run: Run, url: str, root: Path, newest_segment: Path
) -> None:
    archive = next((root / "prod/eu/nodes/n1/archive").rglob("*.parquet"))
    archive.unlink()
    newest_segment.unlink()
    found = run("verify", url, "-o", "json")
    assert found.code == 3
    assert set(statuses(found.json).values()) == {"corrupt"}
    assert archive.name in statuses(found.json)
    assert len(statuses(found.json)) == 2


def test_verify_quick_and_doctor_find_the_same(run: Run, log: Path, tmp_path: Path) -> None:
    """Both find a missing segment, and read no byte of the others."""
    assert run("verify", tmp_path / "log", "--quick").code == 0
    first, middle, _ = sorted(log.glob("*.wal"))
    first.write_bytes(first.read_bytes()[:-60])
    assert run("verify", tmp_path / "log", "--quick").code == 0
    middle.unlink()
    quick, doctor = (
        run("verify", tmp_path / "log", "--quick", "-o", "json"),
        run("doctor", tmp_path / "log", "-o", "json"),
    )
    assert quick.code == doctor.code == 3
    (finding,) = [file for file in quick.json["files"] if file["status"] != "clean"]
    assert f"{finding['file']}: {finding['what']}" in [
        check["what"] for check in doctor.json["checks"] if check["status"] == "problem"
    ]
    assert {Path(file["file"]).name for file in quick.json["unchecked"]} == {
        path.name for path in log.glob("*.wal")
    }
    assert run("verify", tmp_path / "log", "--quick", "--max-duration", "1s").code == 2


def test_a_damaged_archive_is_named(run: Run, url: str, root: Path) -> None:
    archive = next((root / "prod/eu/nodes/n1/archive").rglob("*.parquet"))
    data = bytearray(archive.read_bytes())
    data[40:200] = bytes(160)
    archive.write_bytes(data)
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    assert statuses(ended.json) == {archive.name: "corrupt"}


def test_a_damaged_manifest_is_a_finding(run: Run, url: str, root: Path) -> None:
    manifest = max((root / "prod/eu/nodes/n1/manifest").glob("*.json"))
    manifest.write_text(manifest.read_text().replace('"epoch"', '"epohc"'))
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    assert statuses(ended.json) == {manifest.name: "corrupt"}
    finding = ended.json["files"][0]
    assert "other files were not checked" in finding["what"]
    assert [
        check["what"]
        for check in run("doctor", url, "-o", "json").json["checks"]
        if check["status"] == "problem" and check["what"].startswith(f"{finding['file']}: ")
    ]


def test_a_foreign_file_is_reported_and_left_alone(run: Run, url: str, root: Path) -> None:
    (root / "prod/eu/nodes/n1/wal/notes.txt").write_text("hello")
    ended = run("verify", url, "-o", "json")
    assert ended.code == 0
    assert ended.json["foreign"] == ["prod/eu/nodes/n1/wal/notes.txt"]


def test_the_lease_of_a_writer_is_not_foreign(tmp_path: Path) -> None:
    """On an object store, the lock of a node is a folder of leases."""
    store = LocalObjects(str(tmp_path))
    with imap_wal.open(tmp_path, node="n1", storage=store, preallocate=False) as opened:
        opened.map("m")["k"] = 1
        assert any("writer.lock/" in file.path for file in store.list("default/embedded/nodes"))
        (view,) = take_inventory(Context(LocalObjects(str(tmp_path))))
        assert foreign_files(view, lambda _: True) == []


def test_a_segment_copied_from_another_node_is_found(
    run: Run, url: str, root: Path, newest_segment: Path
) -> None:
    other = next((root / "prod/eu/nodes/n2/wal").glob("*.wal"))
    newest_segment.write_bytes(other.read_bytes())
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    assert "copied here or renamed" in next(
        file["what"] for file in ended.json["files"] if file["status"] == "corrupt"
    )


def test_a_missing_node_is_a_finding(run: Run, url: str, root: Path) -> None:
    (root / "prod/eu/nodes/n2").rename(root / "elsewhere")
    ended = run("verify", url)
    assert ended.code == 3
    assert "'n2'" in ended.out


def test_a_log_that_is_being_written_is_never_called_damaged(run: Run, url: str) -> None:
    import subprocess
    import sys

    program = f"""
import imap_wal
small = dict(segment_bytes=200_000, max_total_wal_size=400_000)
with imap_wal.open({url!r}, namespace='prod', cluster='eu', node='n1', **small) as store:
    orders = store.map('orders')
    print('writing', flush=True)
    while True:
        orders.update({{str(number): 'x' * 500 for number in range(50)}})
"""
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        for _ in range(share(12, ci=17)):
            ended = run("verify", url, "-o", "json")
            assert ended.code == 0, [
                file for file in ended.json["files"] if file["status"] != "clean"
            ]
            assert run("ls", url).code == 0
    finally:
        writer.kill()
        writer.wait()


def test_a_flipped_bit_in_an_archive_is_found(run: Run, url: str, root: Path) -> None:
    archive = next((root / "prod/eu/nodes/n1/archive").rglob("*.parquet"))
    whole = archive.read_bytes()
    for offset in range(40, len(whole) // 2, 41):
        data = bytearray(whole)
        data[offset] ^= 4
        archive.write_bytes(data)
        assert run("verify", url).code == 3, offset


def test_verify_reports_lost_and_later_records(run: Run, tmp_path: Path) -> None:
    """Damage is reported with the lost entries and those after it."""
    import imap_wal
    from imap_wal.segment.reader import SegmentReader
    from storage_backends import open_store

    with imap_wal.open(f"file://{tmp_path}/log", node="n1") as store:
        for key in range(10):
            store.map("m").update({f"k{key}": key, f"l{key}": key})
    (segment,) = (tmp_path / "log").rglob("*.wal")
    frames = list(SegmentReader(open_store(str(segment.parent)), segment.name).whole_frames())
    data = bytearray(segment.read_bytes())
    data[frames[3].offset + 30] ^= 1
    data[frames[4].offset + 30] ^= 1
    segment.write_bytes(data)
    (file,) = [
        file
        for file in run("verify", tmp_path / "log", "-o", "json").json["files"]
        if file["status"] != "clean"
    ]
    assert (
        file["status"],
        file["offset"],
        file["frames_after"],
        file["lost_records"],
        file["records"],
    ) == ("corrupt", frames[3].offset, 6, 4, 16)
    assert file["first_lost"] == f"00000001.00000001.{frames[3].offset:012d}.00000000"
    assert file["last_lost"] == f"00000001.00000001.{frames[4].offset:012d}.00000001"
    assert "unknown" not in run("verify", tmp_path / "log").out


class Ticking:
    """A clock that advances by a second at each call."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        self.seconds += 1
        return self.seconds


@thorough
def test_verify_stops_when_its_time_is_over(
    run: Run, url: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = run("verify", url, "-o", "json").json
    assert not every["summary"]["partial"]
    monkeypatch.setattr("rewrite_cli.commands.reading.verify.SystemClock", Ticking)
    seen = set()
    for seconds in range(1, 60):
        ended = run("verify", url, "--max-duration", f"{seconds}s", "-o", "json")
        found = ended.json
        summary = found["summary"]
        assert ended.code == 0
        assert summary["files"] + summary["unchecked_files"] == every["summary"]["files"]
        assert summary["unchecked_bytes"] == sum(file["bytes"] for file in found["unchecked"])
        assert summary["partial"] == bool(found["unchecked"])
        checked = [
            Path(file["file"]).suffix for file in found["files"] if file["kind"] != "manifest"
        ]
        assert checked == sorted(checked, reverse=True)  # segments before archives
        seen.add(summary["unchecked_files"])
    assert seen == set(range(max(seen) + 1)), "file by file, down to none"
    assert max(seen) > 2
    archive = next((root / "prod/eu/nodes/n1/archive").rglob("*.parquet"))
    archive.write_bytes(b"")
    assert run("verify", url, "--max-duration", "3s").code == 0  # what was checked is clean
    text = run("verify", url, "--max-duration", "3s", "--all")
    assert "partial" in text.out
    assert archive.name in text.err
    assert run("verify", url, "--max-duration", "1h").code == 3
    assert run("verify", url, "--max-duration", "soon").code == 2
    assert run("verify", url, "--max-duration", "0s").code == 2


def test_an_empty_segment_between_others_is_no_damage(run: Run, tmp_path: Path) -> None:
    """A process that is killed before its first commit leaves a header; the next one continues
    after it."""
    import imap_wal
    from storage_backends import open_store
    from tests.support import copy_files

    url = f"memory://empty-{tmp_path}"
    first = imap_wal.open(url, node="n1")
    first.map("m")["k"] = 1
    killed = copy_files(open_store(url))
    first.close()
    (segment,) = [file.path for file in killed.list("") if file.path.endswith(".wal")]
    from imap_wal.segment.reader import SegmentReader

    header = killed.read(segment, 0, SegmentReader(killed, segment).first)
    from imap_wal.format import decode_header

    empty = decode_header(header, segment)[0]._replace(number=2).encode()
    killed.create(segment.replace("-00000001", "-00000002"), empty)
    with imap_wal.open(killed.url, node="n1") as store:
        store.map("m")["k"] = 2
    assert run("verify", killed.url).code == 0


def test_an_archive_merged_during_verify_is_no_damage(run: Run, url: str) -> None:
    store = open_store(url)
    (view,) = take_inventory(Context(store))
    findings, units = plan(Context(store), view, lambda _: True)
    archive = next(unit for unit in units if unit.kind == "archive")
    manifests = NodeManifestLog(Context(store), "prod/eu/nodes/n1")
    manifests.update(lambda manifest: replace(manifest, archives=Listed()))
    store.delete(archive.file)
    (found,), _ = check([archive], lambda _: None, Deadline(SystemClock(), None))
    assert (found.status, found.what) == ("clean", "merged or removed while it was being verified")
    assert findings


def test_a_text_that_is_no_text_is_damage(tmp_path: Path) -> None:
    """In an archive with the right checksums. Readers of its rows would fail."""
    import pyarrow as pa

    from imap_wal.parquet.columns import ARCHIVE_SCHEMA
    from imap_wal.parquet.reader import batches
    from imap_wal.parquet.writer import ParquetFile

    with imap_wal.open(tmp_path) as opened:
        opened.map("m")["k"] = 1
        opened.archive()
    context = Context(open_store(str(tmp_path)))
    manifests = NodeManifestLog(context, "default/embedded/nodes/embedded")
    (archive,) = manifests.read()[1].archives
    (batch,) = batches(context, archive.path)
    offsets = pa.py_buffer((0).to_bytes(4, "little") + (1).to_bytes(4, "little"))
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    columns = {name: batch.column(name) for name in ARCHIVE_SCHEMA.names} | {"key_class": wrong}
    file = ParquetFile(tmp_path, ARCHIVE_SCHEMA, context.keys)
    file.write(pa.record_batch(columns, schema=ARCHIVE_SCHEMA), 0)
    other = replace(archive, path=archive.path.replace(".parquet", "-.parquet"))
    facts = file.publish(context.store, other.path)
    other = replace(other, bytes=facts.bytes, checksum=facts.checksum)
    manifests.update(lambda manifest: replace(manifest, archives=Listed((other,))))
    (view,) = take_inventory(context)
    _, units = plan(context, view, lambda _: True)
    (unit,) = (unit for unit in units if unit.kind == "archive")
    (found,), _ = check([unit], lambda _: None, Deadline(SystemClock(), None))
    assert found.status == "corrupt" and "UTF8" in found.what.upper().replace("-", "")


def test_a_missing_archive_of_the_manifest_is_damage(run: Run, url: str, root: Path) -> None:
    archive = next((root / "prod/eu/nodes/n1/archive").rglob("*.parquet"))
    archive.unlink()
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    (found,) = (file for file in ended.json["files"] if file["status"] == "corrupt")
    assert (
        "this archive of node 'n1' is missing, and with it entries of map 'orders' from"
        in found["what"]
    )


def bad(run: Run, url: str) -> list[dict[str, Any]]:
    return [
        file for file in run("verify", url, "-o", "json").json["files"] if file["status"] != "clean"
    ]


@pytest.fixture
def many_segments(tmp_path: Path) -> Path:
    """A log of node n1 with 17 segments and an archive."""
    with imap_wal.open(
        str(tmp_path / "log"),
        node="n1",
        preallocate=False,
        segment_bytes=300,
        auto_rewrite_percentage=0,
    ) as store:
        store.map("m").update({"a": 1, "b": 2})
        store.archive()
        for number in range(50):
            store.map("m")[f"k{number}"] = number
    return tmp_path / "log"


@every(3)
@pytest.mark.parametrize(
    "how", ["copied", "renamed", "copied over another node", "copied without manifests"]
)
def test_a_folder_with_another_nodes_log_is_one_finding(
    run: Run, many_segments: Path, how: str
) -> None:
    """There was a finding for each of the 17 files, and none named the cause."""
    nodes = many_segments / "default/embedded/nodes"
    if how == "copied over another node":
        with imap_wal.open(
            str(many_segments), node="n2", shared=True, auto_rewrite_percentage=0
        ) as store:
            store.map("m")["x"] = 1
        shutil.rmtree(nodes / "n2")
    shutil.copytree(nodes / "n1", nodes / "n2")
    if how == "renamed":
        shutil.rmtree(nodes / "n1")
    if how == "copied without manifests":
        shutil.rmtree(nodes / "n2/manifest")
    (found,) = bad(run, str(many_segments))
    assert (found["file"], found["status"]) == ("default/embedded/nodes/n2", "corrupt")
    assert (
        "has the log of node 'n1'" in found["what"]
        and "segments and 1 archives are not read" in found["what"]
    )
    assert (
        "back to default/embedded/nodes/n1" if how == "renamed" else "move this folder away"
    ) in found["advice"]
    assert ("bring the log of node 'n2' back" in found["advice"]) == (
        how == "copied over another node"
    )
    assert "has the log of node 'n1'" in run("doctor", many_segments).out
    refused = run("repair", many_segments, "--dry-run")
    assert refused.code == 1 and "has the log of node 'n1'" in refused.err


def test_a_copied_cluster_is_one_finding_for_each_node(run: Run, many_segments: Path) -> None:
    shutil.copytree(many_segments / "default/embedded", many_segments / "default/other")
    (found,) = bad(run, str(many_segments))
    assert (
        found["file"] == "default/other/nodes/n1"
        and "which belongs in default/embedded/nodes/n1" in found["what"]
    )


@pytest.mark.parametrize("policy", ["full", "partial"])
def test_a_folder_with_another_nodes_log_is_not_opened(many_segments: Path, policy: Any) -> None:
    """Without segments to look at, it became a log of two nodes."""
    nodes = many_segments / "default/embedded/nodes"
    with imap_wal.open(str(many_segments), node="n1") as store:
        store.archive()
    shutil.copytree(nodes / "n1", nodes / "n2")
    before = sorted(many_segments.rglob("*"))
    with pytest.raises(MissingNode, match="has the log of node 'n1'"):
        imap_wal.open(str(many_segments), node="n2", recovery_policy=policy)
    assert sorted(many_segments.rglob("*")) == before
