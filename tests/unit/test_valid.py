"""What a valid entry is, and when one is alive: the rules for rows and those for columns agree."""

from __future__ import annotations

from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imap_wal.embedded.changes import MapState
from imap_wal.entry import HIGHEST, DataEntry
from imap_wal.errors import InvalidSetting, NotSerializable, TooLarge
from imap_wal.rules.alive import are_alive, has_expired, have_expired, is_alive
from imap_wal.rules.valid import demand_columns, demand_valid, demand_valid_rows, shows_classes
from imap_wal.serializer import RawSerializer, serializer_of

LIMIT = 12
KINDS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "key_class": pa.string(),
    "value_class": pa.string(),
    "expires_at_ms": pa.int64(),
}
PACKED = st.sampled_from([7, "a", b"x", 1.0, [1], {}, None, "long" * 4]).map(
    lambda value: bytes(msgpack.packb(value))
)
CLASSES = st.sampled_from(["raw", "msgpack", "own"])
ROWS = st.fixed_dictionaries(
    {
        "key": st.binary(max_size=13) | PACKED,
        "value": st.none() | st.binary(max_size=13) | PACKED,
        "key_class": CLASSES,
        "value_class": CLASSES,
        "expires_at_ms": st.sampled_from([-1, 0, 5, HIGHEST]),
    }
)


def is_valid(row: dict[str, Any], classes: set[str]) -> bool:
    deleted = row["value"] is None
    expires = 0 if deleted and row["expires_at_ms"] > 0 else row["expires_at_ms"]
    value_class = "" if deleted else row["value_class"]
    entry = DataEntry(
        "m", row["key"], row["key_class"], row["value"], value_class, deleted, 1, expires, 0,
        (0, 0, 0, 0),
    )  # fmt: skip
    try:
        demand_valid(entry, LIMIT, classes)
    except ValueError:
        return False
    return True


LARGE = {
    "key": b"k" * LIMIT,
    "value": b"v",
    "key_class": "raw",
    "value_class": "raw",
    "expires_at_ms": 0,
}


@example(rows=[LARGE], classes=set(), alike=False)
@example(rows=[{**LARGE, "value": b""}], classes={"raw"}, alike=False)
@example(rows=[{**LARGE, "key": b"\xa17", "value": b"\1"}], classes=set(), alike=True)
@given(st.lists(ROWS, max_size=4), st.sets(CLASSES, max_size=1), st.booleans())
def test_columns_are_valid_exactly_if_all_rows_are(
    rows: list[dict[str, Any]], classes: set[str], alike: bool
) -> None:
    if alike:
        rows = [{**row, "key_class": "msgpack", "value_class": "msgpack"} for row in rows]
    one_class = len({row["key_class"] for row in rows}) <= 1
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(KINDS.items())))
    expected = one_class and all(is_valid(row, classes) for row in rows)
    try:
        demand_valid_rows("m", batch, LIMIT, classes)
    except (InvalidSetting, TooLarge):
        assert not expected
    else:
        assert expected


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from([0, 1, 5, 6, 7, HIGHEST]) | st.integers(0, HIGHEST),
            st.sampled_from([0, 5, 6, 7, HIGHEST]),
        )
    )
)
def test_rows_and_columns_are_alive_alike(cases: list[tuple[bool, int, int]]) -> None:
    for deleted, expires, now in cases:
        row = ("m", b"k", "", None if deleted else b"v", "", deleted, 1, expires, 0, (1, 0, 1, 1))
        state = MapState("m", RawSerializer())
        state.replay([row], now)
        column = pa.table({"deleted": [deleted], "expires_at_ms": pa.array([expires], pa.int64())})
        assert is_alive(row, now) == are_alive(column, now)[0].as_py()
        assert has_expired(expires, now) == have_expired(column["expires_at_ms"], now)[0].as_py()
        if not deleted:
            assert is_alive(row, now) == (b"k" in state.values)
            state.set(b"k", b"v", expires)
            assert is_alive(row, now) == (state.get(b"k", now) is not None)
            assert is_alive(row, now) == (state.size(now) == 1)


def test_a_large_key_can_be_deleted() -> None:
    entry = DataEntry("m", b"k" * 99, "raw", b"", "raw", False, 1, 0, 0, (0, 0, 0, 0))
    with pytest.raises(TooLarge, match="take 99 bytes, more than max_value_bytes, 12"):
        demand_valid(entry, LIMIT)
    demand_valid(entry._replace(value=None, deleted=True), LIMIT)


@pytest.mark.parametrize(("key", "value"), [("text", b""), (b"", bytearray(b"x")), (None, b"")])
def test_a_serializer_must_return_bytes(key: Any, value: Any) -> None:
    with pytest.raises(NotSerializable, match="it must return bytes"):
        demand_columns("m", [b"good", key], [b"good", value], LIMIT)


@pytest.mark.parametrize("name", ["", None, 5, "a\nb", "\ud800"])
def test_a_serializer_needs_a_name(name: Any) -> None:
    own = RawSerializer()
    own.name = name
    with pytest.raises(InvalidSetting, match="the name of the serializer is"):
        serializer_of(own)


def test_the_command_that_shows_classes_is_quoted() -> None:
    assert shows_classes("a\"b'c").endswith(
        'imap-wal query URL \'FROM "a""b\'"\'"\'c" SELECT key_class, value_class, count(*) '
        "GROUP BY ALL'"
    )


@pytest.mark.parametrize("field", ["key_class", "value_class"])
def test_a_class_that_is_no_text_is_refused(field: str) -> None:
    entry = DataEntry("m", b"k", "raw", b"", "raw", False, 1, 0, 0, (0, 0, 0, 0))
    with pytest.raises(ValueError, match=r"of its class, the text .* has a lone surrogate"):
        changed: dict[str, Any] = {field: "\ud83d"}
        demand_valid(entry._replace(**changed), LIMIT)
