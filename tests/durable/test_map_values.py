"""The values that a map accepts, by serializer and by size."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import InvalidSetting, NotAppended, NotSerializable, TooLarge
from storage_backends.memory import MemoryStore
from tests.kit.effort import thorough
from tests.support import contents, embedded


class Json:
    name = "json"

    def dump(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def load(self, data: bytes) -> Any:
        return json.loads(data)

    dump_key = dump
    load_key = load


def test_custom_serializer_is_required_after_a_reopen(memory: MemoryStore) -> None:
    """Without it, the map is refused."""
    with embedded(memory) as store:
        store.map("m", serializer=Json())["k"] = {"a": [1]}
        with pytest.raises(InvalidSetting, match=r"written by serializer 'json', not 'raw'"):
            store.map("m", raw=True)
    with embedded(memory) as store:
        with pytest.raises(InvalidSetting, match="'json'; pass it to map"):
            store.map("m")
        assert store.map("m", serializer=Json())["k"] == {"a": [1]}
        assert store.map("m")["k"] == {"a": [1]}
    with embedded(memory, serializer=Json()) as store:
        assert store.map("m")["k"] == {"a": [1]}


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.__setitem__(object(), 1),
        lambda m: m.__setitem__("k", object()),
        lambda m: m.__setitem__("k", {1, object()}),
        lambda m: m.__setitem__("k", 2**64),
        lambda m: m.__setitem__("k", "\ud800"),
        lambda m: m.update({"x": 1, "y": object()}),
        lambda m: m.put("k", lambda: 0, ttl=5),
        lambda m: m.__setitem__("k", _endless()),
    ],
)
def test_unserializable_value_appends_nothing(
    memory: MemoryStore, change: Callable[[Any], None]
) -> None:
    """msgpack cannot write the value, so the change is refused."""
    with embedded(memory) as store:
        m = store.map("m")
        m["before"] = 1
        size = store.statistics.commits.bytes
        with pytest.raises(NotSerializable) as raised:
            change(m)
        assert isinstance(raised.value, NotAppended)
        assert isinstance(raised.value, TypeError)
        assert store.statistics.commits.bytes == size
        m["after"] = 2
        assert dict(m.items()) == {"before": 1, "after": 2}
    assert contents(memory) == {"before": 1, "after": 2}


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@thorough
def test_a_value_of_64_megabytes_is_kept(url: str) -> None:
    value = bytes(range(256)) * (64 * 1024 * 4)
    with imap_wal.open(url, node="n") as store:
        store.map("m")["big"] = value
        store.map("m")["small"] = 1
    with imap_wal.open(url, node="n") as store:
        assert store.map("m")["big"] == value
        assert store.map("m")["small"] == 1


def test_value_above_the_limit_appends_nothing(memory: MemoryStore) -> None:
    """The change is refused."""
    with embedded(memory, max_value_bytes=1000) as store:
        m = store.map("m", raw=True)
        m[b"k"] = b"x" * 999
        for change in (
            lambda: m.put(b"k", b"x" * 1000),
            lambda: m.update({b"a": b"1", b"b": b"x" * 1000}),
            lambda: m.put(b"y" * 1001, b""),
        ):
            with pytest.raises(TooLarge, match="more than max_value_bytes, 1000") as raised:
                change()
            assert isinstance(raised.value, NotAppended | ValueError)
        assert store.statistics.commits.records == 1
        assert len(m) == 1


def test_update_above_the_frame_count_is_refused_whole(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has more changes than a frame can count."""
    monkeypatch.setattr("imap_wal.write.ring.COUNT_MAX", 5)
    with embedded(memory) as store:
        with pytest.raises(TooLarge, match="6 changes"):
            store.map("m").update({number: number for number in range(6)})
        store.map("m").update({number: number for number in range(5)})
    assert len(contents(memory)) == 5
