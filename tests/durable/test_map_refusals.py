"""A store that is closed, damaged or configured wrongly raises an error, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import (
    Closed,
    CorruptLog,
    InvalidSetting,
    StorageUnavailable,
    UnsupportedVersion,
)
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.support import copy_files, embedded, overwrite, segments


def test_a_closed_store_raises_closed_and_closing_twice_works(memory: MemoryStore) -> None:
    store = embedded(memory)
    m = store.map("m")
    m["a"] = 1
    store.close()
    store.close()
    for use in (
        lambda: m.__setitem__("a", 2),
        lambda: m.clear(),
        lambda: store.map("m"),
        lambda: store.sync(),
        lambda: store.archive(),
    ):
        with pytest.raises(Closed, match="open it again"):
            use()


def test_reads_of_a_closed_store_are_refused(memory: MemoryStore) -> None:
    """They return no old value."""
    store = embedded(memory)
    m = store.map("m")
    m["a"] = 1
    store.close()
    reads: list[Callable[[], Any]] = [
        lambda: m["a"],
        lambda: m.get("a"),
        lambda: "a" in m,
        lambda: len(m),
        lambda: iter(m),
        lambda: list(m.keys()),
        lambda: list(m.items()),
        lambda: list(m.values()),
        lambda: dict(m),
        lambda: m == {"a": 1},
        lambda: m.ttl("a"),
        lambda: m.pop("a"),
        m.popitem,
        lambda: m.setdefault("a"),
        lambda: m.update({}),
        store.maps,
    ]
    for read in reads:
        with pytest.raises(Closed, match="open it again"):
            read()
    assert repr(m) == "<DurableMap 'm' closed>"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://relative/path", "^file://relative/path: a file URL has three slashes"),
        ("nosuch://bucket/x", "nosuch"),
        ("file:///dev/null/x", "/dev/null/x"),
        ("file:///proc/nothing", "/proc/nothing"),
    ],
)
def test_a_wrong_url_is_an_error_that_names_it(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageUnavailable, match=says):
        imap_wal.open(url)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"durability": "sometimes"},
            "durability is 'sometimes'; it takes one of always, interval, os, async",
        ),
        ({"ring_slots": 100}, "ring_slots is 100; it takes a power of two"),
        ({"segment_bytes": 0}, "segment_bytes is 0; it takes 1 or more"),
        ({"max_value_bytes": 2**31}, "max_value_bytes"),
        ({"segment_size": 1}, "segment_size"),
        ({"recovery_policy": "none"}, "recovery_policy"),
        ({"archive_interval_s": -1}, "archive_interval_s is -1"),
        ({"segment_bytes": "64M"}, "segment_bytes is '64M'; it takes a whole number"),
        ({"preallocate": "no"}, "preallocate is 'no'; it takes true or false"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_is_created(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidSetting, match=says):
        imap_wal.open(f"file://{tmp_path}/log", **settings)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_name_of_node_cluster_or_namespace_is_refused(url: str) -> None:
    for name in ("namespace", "cluster"):
        with pytest.raises(InvalidSetting, match="must not be empty"):
            empty: dict[str, Any] = {name: ""}
            imap_wal.open(url, **empty)


def test_a_log_of_a_newer_version_is_not_touched(memory: MemoryStore) -> None:
    import struct

    import google_crc32c

    store = embedded(memory)
    store.map("m")["a"] = 1
    left = copy_files(memory)
    path = segments(left)[0]
    data = bytearray(left.read(path))
    length = struct.unpack_from("<H", data, 10)[0]
    data[8:10] = struct.pack("<H", 7)
    data[12 + length : 16 + length] = struct.pack(
        "<I", google_crc32c.value(bytes(data[: 12 + length]))
    )
    overwrite(left, path, bytes(data))
    with pytest.raises(UnsupportedVersion, match="version 7"):
        embedded(left)
    assert left.read(path) == bytes(data)


def test_damaged_sealed_frame_stops_open_after_clean_shutdown(url: str, tmp_path: Path) -> None:
    """A clean stop does not hide the damage."""
    with imap_wal.open(url, node="n", segment_bytes=1000) as store:
        for number in range(50):
            store.map("m")[number] = "x" * 50
    files = LocalStore(f"{tmp_path}/log")
    path = segments(files)[1]
    data = bytearray(files.read(path))
    data[400] ^= 1
    overwrite(files, path, bytes(data))
    with pytest.raises(CorruptLog) as raised:
        imap_wal.open(url, node="n")
    assert raised.value.file == path
    data[400] ^= 1
    overwrite(files, path, bytes(data))
    with imap_wal.open(url, node="n") as store:
        assert len(store.map("m")) == 50
