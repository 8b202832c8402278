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


def test_no_program_opens_the_node_of_a_backfill() -> None:
    layout.Identity("default", "c", "my-backfill").check()
    with pytest.raises(InvalidSetting, match="names that begin with 'backfill-'"):
        layout.Identity("default", "c", "backfill-1").check()


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
