"""DataEntries as bytes."""

from __future__ import annotations

import pytest

from imap_wal import entry


@pytest.mark.parametrize("length", [0, 1, 31, 32, 255])
@pytest.mark.parametrize("request_", [1, 127, 65_536, 2**32 - 1])
def test_small_upsert_is_the_entry_that_pack_gives(length: int, request_: int) -> None:
    key, value = b"k" * length, bytes(range(length))
    head, middle, tail = entry.small_upsert_parts("grüße", "raw", 1_700_000_000_000, 300, 70_000)
    data = entry.SMALL_UPSERT % (head, len(key), key, middle, len(value), value, tail, request_.to_bytes(4, "big"))
    expected = ("grüße", key, "raw", value, "raw", False, 1_700_000_000_000, 0, 0, (300, 0, 70_000, request_))
    assert entry.values(data) == entry.values(entry.pack(expected)) == [expected]
