"""Names of nodes and clusters, and of the files of a log."""

from __future__ import annotations

import pytest

from imap_wal import layout
from imap_wal.errors import InvalidSetting
from imap_wal.names import decode, encode


@pytest.mark.parametrize("name", ["../a b", "a/b", ".", "..", "ä", "a%2Fb", "~", "CON", "a" * 60])
def test_every_name_becomes_one_path_component_and_is_decoded(name: str) -> None:
    encoded = encode(name)
    assert "/" not in encoded
    assert encoded.strip(".")
    assert decode(encoded) == name


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="empty"):
        encode("")


def test_only_a_name_with_a_uuid_is_a_backfill() -> None:
    assert layout.is_backfill("backfill-0f8fad5b-d9cb-469f-a165-70867728950e")
    for name in ("backfill-0", "my-backfill", "backfill-0f8fad5b-d9cb-469f-a165-70867728950e2"):
        assert not layout.is_backfill(name)


def test_segment_name_has_only_epoch_and_number() -> None:
    """Any other name is not the name of a segment."""
    assert layout.parse_wal_path(layout.wal_path("n", 3, 123456789)) == (3, 123456789)
    for path in (
        "n/wal/3-1.wal",
        "n/wal/00000003-00000001.wal.tmp",
        "n/wal/x.wal",
        "n/wal/00000003.fenced",
    ):
        assert layout.parse_wal_path(path) is None
