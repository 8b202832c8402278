"""`wal_filter`: keep, skip, change, stop."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest

import imap_wal
from imap_wal import STOP, DataEntry
from imap_wal.errors import InvalidSetting
from storage_backends.memory import MemoryStore
from tests.support import FakeClock, copy_files, embedded, segments


def opened(
    memory: MemoryStore, wal_filter: Callable[[DataEntry], Any], **options: Any
) -> dict[str, dict[Any, Any]]:
    """The contents of the maps when a copy of the log is opened with the filter."""
    with embedded(copy_files(memory), wal_filter=wal_filter, **options) as store:
        return {name: dict(store.map(name)) for name in store.maps()}


def key(entry: DataEntry) -> Any:
    return msgpack.unpackb(entry.key)


def test_wal_filter_sees_entries_in_log_order(
    memory: MemoryStore,
) -> None:
    """It sees every entry in the order of the log; an open has exactly the entries that it
    keeps."""
    store = embedded(memory, segment_bytes=600)
    for number in range(20):
        store.map("a")[number % 7] = number
        store.map("b")[number] = number
        if number == 10:
            store.archive()
    del store.map("a")[3]
    seen: list[DataEntry] = []

    def keep(entry: DataEntry) -> DataEntry:
        seen.append(entry)
        return entry

    assert opened(memory, keep) == {name: dict(store.map(name)) for name in ("a", "b")}
    assert [entry.order[3] for entry in seen] == list(range(1, 42))
    assert len(segments(memory)) > 1


def test_an_older_value_counts_when_the_newer_is_skipped(memory: MemoryStore) -> None:
    store = embedded(memory)
    items = store.map("m")
    items["a"], items["b"], items["a"] = 1, 2, 3
    del items["b"]
    assert opened(
        memory, lambda entry: None if entry.deleted or entry.value == msgpack.packb(3) else entry
    ) == {"m": {"a": 1, "b": 2}}


def test_wal_filter_changes_entries_and_keeps_their_order(memory: MemoryStore) -> None:
    """It can change values, keys, maps and times to live; the order does not change."""
    store = embedded(memory)
    store.map("m").update({"a": 1, "b": 2, "c": 3})
    answers: dict[str, dict[str, Any]] = {
        "a": {"value": msgpack.packb(10)},
        "b": {"map": "other", "order": (9, 9, 9, 9)},
        "c": {"expires_at_ms": 1},
    }
    assert opened(memory, lambda entry: entry._replace(**answers[key(entry)])) == {
        "m": {"a": 10},
        "other": {"b": 2},
    }
    assert opened(
        memory, lambda entry: entry._replace(value=None) if key(entry) == "a" else entry
    ) == {"m": {"b": 2, "c": 3}}


@pytest.mark.parametrize("at", range(1, 31, 5))
def test_wal_filter_stop_drops_all_later_entries(memory: MemoryStore, at: int) -> None:
    """STOP leaves out its entry and all later ones, also over archives of several maps."""
    store = embedded(memory)
    chance = Random(at)
    maps: dict[str, dict[Any, Any]] = {"a": {}, "b": {}, "c": {}}
    for number in range(1, 31):
        name, where = chance.choice("abc"), chance.randrange(5)
        store.map(name)[where] = number
        if number < at:
            maps[name][where] = number
        if number == 20:
            store.archive()
    assert opened(memory, lambda entry: STOP if entry.order[3] == at else entry) == {
        name: content for name, content in maps.items() if content
    }


def test_wal_filter_changes_nothing_on_storage(
    memory: MemoryStore,
) -> None:
    """Nothing on storage is changed, and the next open sees all entries again."""
    with embedded(memory) as store:
        store.map("m")["a"] = 1
    with embedded(memory, wal_filter=lambda entry: None) as store:
        assert store.maps() == []
        store.map("m")["b"] = 2
    with embedded(memory) as store:
        assert dict(store.map("m")) == {"a": 1, "b": 2}


def test_failed_wal_filter_leaves_the_log_closed_and_whole(
    memory: MemoryStore,
) -> None:
    """A wrong answer and a filter that fails leave the log closed and whole."""
    with embedded(memory) as store:
        store.map("m")["a"] = 1
    with pytest.raises(InvalidSetting, match="wal_filter returned 7"):
        embedded(memory, wal_filter=lambda entry: 7)
    for change in ({"value": "text"}, {"map": ""}, {"expires_at_ms": -1}, {"key": b"\xc1"}):
        with pytest.raises(InvalidSetting, match=r"wal_filter returned an entry|name of a map"):
            embedded(memory, wal_filter=lambda entry, new=change: entry._replace(**new))
    with pytest.raises(ZeroDivisionError):
        embedded(memory, wal_filter=lambda entry: 1 // 0)
    with embedded(memory, clock=FakeClock()) as store:
        assert dict(store.map("m")) == {"a": 1}


def test_the_constant_stop_is_public() -> None:
    assert imap_wal.STOP is STOP
