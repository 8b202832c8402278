"""Names on storage."""

from __future__ import annotations

from imap_wal.layout import without_replaced


def test_segments_of_a_replaced_writer_do_not_count() -> None:
    assert without_replaced([]) == set()
    assert without_replaced([(1, 1), (1, 2), (2, 3)]) == {(1, 1), (1, 2), (2, 3)}
    assert without_replaced([(1, 8), (2, 8)]) == {(2, 8)}
    assert without_replaced([(1, 7), (1, 8), (1, 9), (2, 8)]) == {(1, 7), (2, 8)}, (
        "neither the same number nor an older one"
    )
    assert without_replaced([(3, 9), (2, 8), (2, 9), (1, 9)]) == {(2, 8), (3, 9)}
