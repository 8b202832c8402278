"""verify: every kind of damage has its status, its place and its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.conftest import Run


def statuses(found: Any) -> dict[str, str]:
    return {Path(file["file"]).name: file["status"] for file in found["files"] if file["status"] != "clean"}


def test_a_whole_log_is_clean(run: Run, url: str) -> None:
    ended = run("verify", url, "-o", "json")
    assert ended.code == 0
    assert ended.json["summary"]["corrupt"] == 0
    assert ended.json["summary"]["records"] == 15
    assert "no damage" in run("verify", url).out


def test_a_flipped_bit_before_whole_frames_is_corruption(run: Run, url: str, newest_segment: Path) -> None:
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


def test_an_incomplete_last_commit_is_a_torn_tail_and_no_damage(run: Run, url: str, root: Path) -> None:
    import os
    import signal
    import subprocess
    import sys

    program = f"import imap_wal, os, signal; s = imap_wal.open({url!r}, namespace='prod', cluster='eu', node='n1'); s.map('orders')['x'] = 1; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    subprocess.run([sys.executable, "-c", program], check=False)
    segment = max((root / "prod/eu/nodes/n1/wal").glob("*.wal"))
    data = segment.read_bytes().rstrip(b"\0")
    os.truncate(segment, len(data) - 3)
    ended = run("verify", url, "-o", "json")
    assert ended.code == 0
    assert statuses(ended.json) == {segment.name: "torn-tail"}
    os.truncate(segment, 0)
    assert statuses(run("verify", url, "-o", "json").json) == {segment.name: "torn-tail"}


def test_an_empty_older_segment_is_damage(run: Run, url: str, root: Path, newest_segment: Path) -> None:
    newest_segment.write_bytes(b"")
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    assert statuses(ended.json) == {newest_segment.name: "corrupt"}


def test_a_newer_version_is_unsupported_not_corrupt(run: Run, url: str, newest_segment: Path) -> None:
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


def test_a_missing_archive_and_a_missing_segment_are_named(run: Run, url: str, root: Path, newest_segment: Path) -> None:
    archive = next((root / "prod/eu/nodes/n1/archive").rglob("*.parquet"))
    archive.unlink()
    newest_segment.unlink()
    found = run("verify", url, "-o", "json")
    assert found.code == 3
    assert set(statuses(found.json).values()) == {"corrupt"}
    assert archive.name in statuses(found.json)
    assert len(statuses(found.json)) == 2


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


def test_a_foreign_file_is_told_and_left_alone(run: Run, url: str, root: Path) -> None:
    (root / "prod/eu/nodes/n1/wal/notes.txt").write_text("hello")
    ended = run("verify", url, "-o", "json")
    assert ended.code == 0
    assert ended.json["foreign"] == ["prod/eu/nodes/n1/wal/notes.txt"]


def test_a_segment_copied_from_another_node_is_found(run: Run, url: str, root: Path, newest_segment: Path) -> None:
    other = next((root / "prod/eu/nodes/n2/wal").glob("*.wal"))
    newest_segment.write_bytes(other.read_bytes())
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    assert "copied here or renamed" in next(file["what"] for file in ended.json["files"] if file["status"] == "corrupt")


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
with imap_wal.open({url!r}, namespace='prod', cluster='eu', node='n1', segment_bytes=200_000, max_total_wal_size=400_000) as store:
    orders = store.map('orders')
    print('writing', flush=True)
    while True:
        orders.update({{str(number): 'x' * 500 for number in range(50)}})
"""
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        for _ in range(12):
            ended = run("verify", url, "-o", "json")
            assert ended.code == 0, [file for file in ended.json["files"] if file["status"] != "clean"]
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
