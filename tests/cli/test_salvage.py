"""What repair reads of a damaged Parquet file: whole rows, or the damage is reported; never wrong
rows, and never fewer rows without a report."""

from __future__ import annotations

import random
from pathlib import Path

import imap_wal
from imap_wal.context import Context
from imap_wal.entry import Row
from imap_wal.parquet.salvage import LostRows, readable
from storage_backends.local import LocalStore


def test_a_flipped_archive_bit_never_changes_rows(tmp_path: Path, seed: int) -> None:
    """The rows are the same, or damage is reported."""
    with imap_wal.open(tmp_path.as_uri(), node="n", preallocate=False) as opened:
        opened.map("m").update({f"key{number}": "v" * (number % 50) for number in range(400)})
        opened.archive()
    store = LocalStore(str(tmp_path))
    (file,) = tmp_path.rglob("*.parquet")
    path, whole = str(file.relative_to(tmp_path)), file.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8

    def read() -> tuple[list[Row], list[LostRows]]:
        rows: list[Row] = []
        damages: list[LostRows] = []
        for part in readable(Context(store), path, log=""):
            if isinstance(part, LostRows):
                damages.append(part)
            else:
                rows += part.rows
        return rows, damages

    expected, none = read()
    assert len(expected) == 400
    assert not none
    chance = random.Random(seed)
    found = 0
    for case in range(240):
        at = (
            len(whole) - 1 - chance.randrange(footer) if case % 3 else chance.randrange(len(whole))
        )  # the footer has no checksum of its own
        data = bytearray(whole)
        data[at] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        rows, damages = read()
        assert damages or rows == expected, f"bit of byte {at} of {len(whole)}, seed {seed}"
        assert all(row in expected for row in rows), (
            f"bit of byte {at} of {len(whole)}, seed {seed}"
        )
        found += bool(damages)
    assert found > 50
