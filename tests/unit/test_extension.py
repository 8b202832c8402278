"""The bytes of keys and values of untyped maps: they never change (docs/format.md)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imap_wal.errors import NotReadable
from imap_wal.extension import LEVELS_MAX
from imap_wal.serializer import MsgpackSerializer

PARIS = ZoneInfo("Europe/Paris")
VALUES = {
    "93 01 a1 61 c4 01 62": [1, "a", b"b"],
    "82 a1 61 01 02 c0": {"a": 1, 2: None},
    "c7 03 01 92 01 c0": (1, None),
    "d6 02 92 01 a1 61": {"a", 1},
    "d4 03 90": frozenset(),
    "c7 13 04 323032362d30312d30325430333a30343a3035": dt.datetime(2026, 1, 2, 3, 4, 5),
    "c7 2f 04 323032362d31302d32355430323a33303a30302b30313a3030" + b"[Europe/Paris]".hex()
    + b"[fold=1]".hex(): dt.datetime(2026, 10, 25, 2, 30, tzinfo=PARIS, fold=1),
    "c7 0a 05 323032362d30312d3032": dt.date(2026, 1, 2),
    "d7 06 30333a30343a3035": dt.time(3, 4, 5),
    "d7 07" + b"P1DT2.5S".hex(): dt.timedelta(1, 2, 500_000),
    "d6 08 312e3530": Decimal("1.50"),
    "d8 09 00000000000000000000000000000007": UUID(int=7),
}  # fmt: skip
KEYS = {
    "92 01 91 a1 61": (1, ("a",)),
    "01": Decimal("1.0"),
    "d6 03 92 01 91 02": frozenset({(2,), 1}),
    "c7 05 03 9301ccc8ff": frozenset({200, 1, -1}),  # not in the order of their hashes
    "c7 19 04" + b"2026-01-02T02:04:05+00:00".hex(): dt.datetime(2026, 1, 2, 3, 4, 5, 0, PARIS),
}
_serializer = MsgpackSerializer()


@pytest.mark.parametrize("data", VALUES)
def test_the_bytes_of_a_value_are_golden(data: str) -> None:
    assert _serializer.dump(VALUES[data]).hex() == data.replace(" ", "")
    assert _serializer.load(bytes.fromhex(data)) == VALUES[data]


@pytest.mark.parametrize("data", KEYS)
def test_the_bytes_of_a_key_are_golden(data: str) -> None:
    assert _serializer.dump_key(KEYS[data]).hex() == data.replace(" ", "")
    assert _serializer.load_key(bytes.fromhex(data)) == KEYS[data]
    _serializer.demand_key(bytes.fromhex(data))


def packed(*levels: int) -> bytes:
    data = bytes(msgpack.packb([]))
    for code in levels:
        data = bytes(msgpack.packb([msgpack.ExtType(code, data)]))
    return data


INVALID = [
    (4, b"no date"), (4, b"\xff"), (5, b""), (6, b"25:00"), (7, b"P"), (8, b"one"), (9, b"short"),
    (1, b""), (1, b"\x01"), (1, b"\xa1a"), (1, b"\x81\x01\x01"), (2, b"\x91\x90"), (2, b"\x91\x80"),
    (3, b"\xdd\xff\xff\xff\xff"), (10, b"of another program"), (0, b""),
]  # fmt: skip


@pytest.mark.parametrize(("code", "data"), INVALID)
def test_what_is_no_valid_extension_is_returned_as_it_is(code: int, data: bytes) -> None:
    extension = msgpack.ExtType(code, data)
    read = _serializer.load(bytes(msgpack.packb({"before": 1, "x": [extension]})))
    assert read == {"before": 1, "x": [extension]}


@pytest.mark.parametrize("code", [1, 2, 3])
def test_endless_levels_end_no_read(code: int) -> None:
    """Each level takes a part of the stack: a million of them ended the process."""
    value = _serializer.load(packed(*[code] * 3000))
    for _ in range(LEVELS_MAX):
        (value,) = value
        assert type(value) in (tuple, set, frozenset) or code == 2
        if type(value) is msgpack.ExtType:
            return
    (value,) = value
    assert type(value) is msgpack.ExtType


ZONES = ["Europe/Paris", "No/Zone", "../../etc/passwd", "", "a\0b", "fold=1", "Europe"]


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("text", ["2026-01-01T00:00:00+01:00", "2026-01-01T00:00:00"])
def test_an_unknown_zone_leaves_the_offset(text: str, name: str) -> None:
    data = bytes(msgpack.packb(msgpack.ExtType(4, f"{text}[{name}]".encode())))
    value = _serializer.load(data)
    assert value.replace(tzinfo=None) == dt.datetime(2026, 1, 1)
    assert value.utcoffset() == dt.datetime.fromisoformat(text).utcoffset()


def test_a_zone_with_other_rules_now_leaves_the_offset() -> None:
    data = bytes(msgpack.packb(msgpack.ExtType(4, b"2026-01-01T00:00:00+05:00[Europe/Paris]")))
    assert _serializer.load(data).isoformat() == "2026-01-01T00:00:00+05:00"


@given(st.binary(max_size=40) | st.builds(
    lambda code, data: bytes(msgpack.packb([msgpack.ExtType(code, data)])),
    st.integers(1, 9), st.binary(max_size=20) | st.text("0123456789-+:TZP.E[]W").map(str.encode),
))  # fmt: skip
def test_bytes_of_others_are_read_or_named(data: bytes) -> None:
    for load in (_serializer.load, _serializer.load_key):
        try:
            value: Any = load(data)
        except NotReadable:
            continue
        repr(value)
