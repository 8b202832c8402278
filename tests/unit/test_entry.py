"""DataEntries as bytes."""

from __future__ import annotations

import pytest

from imap_wal import entry


@pytest.mark.parametrize("request_", [1, 127, 255, 256, 65_536, 2**32 - 300, 2**32, 2**40])
@pytest.mark.parametrize("lengths", [[0], [1, 31, 32, 255, 256, 5000, 65_536], [3] * 700])
def test_packed_upserts_are_the_entries_that_pack_gives(lengths: list[int], request_: int) -> None:
    keys = [b"%d" % number + b"k" * length for number, length in enumerate(lengths)]
    values = [b"%d" % number * length for number, length in enumerate(lengths)]
    data = b"".join(entry.pack_upserts("grüße", "raw", keys, values, 1_700_000_000_000, 300, 70_000, request_))
    expected = [
        ("grüße", key, "raw", value, "raw", False, 1_700_000_000_000, 0, 0, (300, 0, 70_000, request_ + number))
        for number, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    assert entry.values(data) == entry.values(b"".join(map(entry.pack, expected))) == expected
