"""DataEntries as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from imap_wal import entry
from imap_wal.parquet.columns import to_batch, to_rows


@pytest.mark.parametrize("request_", [1, 127, 255, 256, 65_536, 2**32 - 300, 2**32, 2**40])
@pytest.mark.parametrize("lengths", [[0], [1, 31, 32, 255, 256, 5000, 65_536], [3] * 700])
def test_packed_upserts_equal_the_entries_of_pack(lengths: list[int], request_: int) -> None:
    keys = [b"%d" % number + b"k" * length for number, length in enumerate(lengths)]
    values = [b"%d" % number * length for number, length in enumerate(lengths)]
    data = b"".join(
        entry.pack_upserts("grüße", "raw", keys, values, 1_700_000_000_000, 300, 70_000, request_)
    )
    expected = [
        (
            "grüße",
            key,
            "raw",
            value,
            "raw",
            False,
            1_700_000_000_000,
            0,
            0,
            (300, 0, 70_000, request_ + number),
        )
        for number, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    assert entry.values(data) == entry.values(b"".join(map(entry.pack, expected))) == expected


@pytest.mark.parametrize("value", [-(2**63) - 1, -(2**63), 2**63 - 1, 2**63])
@pytest.mark.parametrize("field", ["timestamp_ms", "expires_at_ms", "partition"])
def test_a_number_is_accepted_exactly_if_an_archive_takes_it(field: str, value: int) -> None:
    change: dict[str, Any] = {field: value}
    row = tuple(
        entry.DataEntry("m", b"k", "", b"v", "", False, 1, 2, 3, (1, 1, 1, 1))._replace(**change)
    )
    if (0 if field == "expires_at_ms" else -(2**63)) <= value < 2**63:
        entry.check(row)
        assert to_rows(to_batch([row], "n1")) == [row]  # type: ignore[list-item]
    else:
        with pytest.raises(ValueError, match=f"{field} is {value}"):
            entry.check(row)
        if value != -(2**63):  # nothing expires before 1970
            with pytest.raises(OverflowError):
                to_batch([row], "n1")  # type: ignore[list-item]


@pytest.mark.parametrize(
    "order",
    [
        (1, -1, 1, 1),
        (1, 2**63, 1, 1),
        (1, 1, 1, 2**63),
        (1, 1.0, 1, 1),
        (1, True, 1, 1),
        (1.0, 1, 1, 1),
        (1, 1, 1.0, 1),
        (1, 1, True, 1),
        (-1, 1, 1, 1),
        (1, 1, 1),
    ],
)
def test_an_invalid_order_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"partition_version is|request is|incarnation is|not a DataEntry"
    ):
        entry.check(("m", b"k", "", b"v", "", False, 1, 2, 3, order))
