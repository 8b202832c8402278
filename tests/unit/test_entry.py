"""DataEntries as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imap_wal import entry
from imap_wal.entry import HIGHEST
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


def row_of(kind: str, map_name: str, value: bytes) -> tuple[Any, ...]:
    order = (1, 0, 2, 3)
    rows: dict[str, tuple[Any, ...]] = {
        "upsert": (map_name, b"k", "raw", value, "raw", False, 1, 0, 0, order),
        "of a member": (map_name, b"k", "java.Long", value, "", False, 1, 0, 7, (1, 2, 3, 4)),
        "highest": (map_name, b"k", "raw", value, "raw", False, 1, 0, 0, (HIGHEST, 0) * 2),
        "expires": (map_name, b"k", "raw", value, "raw", False, 1, 5, 0, order),
        "tombstone": (map_name, b"k", "raw", None, "raw", True, 1, 0, 0, order),
        "clear": (map_name, None, "", None, "", True, 1, 1, 0, order),
        "deleted with a value": (map_name, b"k", "raw", value, "raw", True, 1, 0, 0, order),
        "order too high": (map_name, b"k", "raw", value, "raw", False, 1, 0, 0, (1, 0, 2, 2**63)),
        "text as key": (map_name, "k", "raw", value, "raw", False, 1, 0, 0, order),
    }
    return rows[kind]


KINDS = ("upsert", "highest", "of a member", "expires", "tombstone", "clear")
INVALID = ("deleted with a value", "order too high", "text as key")
MAPS = st.sampled_from(["m", "größe"])
BATCHES = st.one_of(
    st.tuples(st.sampled_from(("upsert", "highest")), MAPS, st.binary(max_size=3)).map(
        lambda row: [row] * 3
    ),
    st.lists(
        st.tuples(st.sampled_from(KINDS * 4 + INVALID), MAPS, st.binary(max_size=3)), max_size=4
    ),
)


@example(
    batches=[
        [("upsert", "m", b"v")] * 3,
        [("upsert", "m", b"v"), ("deleted with a value", "m", b"v"), ("upsert", "m", b"v")],
    ]
)
@given(batches=st.lists(BATCHES, max_size=12))
def test_batches_of_a_file_are_decoded_as_alone(
    batches: list[list[tuple[str, str, bytes]]],
) -> None:
    decoder = entry.EntryDecoder(least=1)
    for batch in batches:
        packed = [entry.pack(row_of(*each)) for each in batch]
        try:
            alone = entry.decoded(b"".join(packed), len(packed))
        except ValueError:
            with pytest.raises(ValueError):
                decoder.decoded(packed, len(packed))
            continue
        rows = decoder.decoded(packed, len(packed))
        assert rows == alone
        if isinstance(rows, entry.Upserts):
            assert len({(row[0], row[2], row[4], row[5], row[7]) for row in rows}) == 1
            assert not rows[0][5] and not rows[0][7]


def test_batches_like_the_one_before_are_upserts() -> None:
    decoder = entry.EntryDecoder(least=1)
    like = [entry.pack(row_of("upsert", "m", b"v"))] * 2
    other = [like[0], entry.pack(row_of("expires", "m", b"v"))]
    kinds = [
        isinstance(decoder.decoded(batch, 2), entry.Upserts)
        for batch in (like, like, other, like, like, like)
    ]
    assert kinds == [False, True, False, False, True, True]
