"""Segments of objects are requested before they are needed, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from imap_wal.segment import reader as module
from imap_wal.segment.reader import read_ahead
from storage_backends import Capabilities, NotFound, SegmentStore

FILES = [(number, f"f{number}", 10) for number in range(100)]
OBJECTS = Capabilities(
    durable_append=False,
    durable_sync=True,
    exclusive_create=True,
    atomic_replace=True,
    preallocate=False,
    locks=False,
)


class Requests:
    """A storage that counts its reads. Those of `slow` wait until `go` is set."""

    capabilities = OBJECTS

    def __init__(self, missing: str = "") -> None:
        self.began: list[str] = []
        self.missing = missing
        self.go = threading.Event()
        self.go.set()
        self._mutex = threading.Lock()
        self.changed = threading.Condition(self._mutex)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with self.changed:
            self.began.append(path)
            self.changed.notify_all()
        assert self.go.wait(10)
        if path == self.missing:
            raise NotFound("no such object", path)
        return path.encode()

    def await_began(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.began) >= count, 10)


@pytest.fixture
def requests() -> Iterator[Requests]:
    found = Requests()
    yield found
    found.go.set()


def store(requests: Requests) -> SegmentStore:
    return cast(SegmentStore, requests)


def test_files_arrive_in_order_and_are_requested_once(requests: Requests) -> None:
    found = [(item, source.read("any")) for item, source in read_ahead(store(requests), FILES)]
    assert found == [(number, path.encode()) for number, path, _ in FILES]
    assert sorted(requests.began) == sorted(path for _, path, _ in FILES)


def test_a_bounded_number_of_files_is_requested_ahead(requests: Requests) -> None:
    """No more than `READERS`, whoever waits for the first one."""
    requests.go.clear()
    sources = read_ahead(store(requests), FILES)
    next(sources)
    assert requests.await_began(module.READERS)
    requests.go.set()
    sources.close()
    assert len(requests.began) == module.READERS


def test_files_ahead_take_a_bounded_space(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 25)
    sources = read_ahead(store(requests), FILES)
    next(sources)
    sources.close()
    assert len(requests.began) == 3


def test_an_error_is_raised_when_its_file_is_read(requests: Requests) -> None:
    requests.missing = "f2"
    read: list[Any] = []
    for item, source in read_ahead(store(requests), FILES[:5]):
        try:
            read.append(source.read("any", 1, 1))
        except NotFound:
            read.append(item)
    assert read == [b"0", b"1", 2, b"3", b"4"]


def test_a_file_without_a_path_is_read_from_the_storage(requests: Requests) -> None:
    """Parquet files are, in parts."""
    found = list(read_ahead(store(requests), [(0, "f0", 10), (1, "", 10), (2, "f2", 10)]))
    assert [source is requests for _, source in found] == [False, True, False]
    assert sorted(requests.began) == ["f0", "f2"]


def test_nothing_is_requested_ahead_of_a_file_that_grows(requests: Requests) -> None:
    requests.capabilities = Capabilities(True, True, True, True, True, True)
    assert all(source is requests for _, source in read_ahead(store(requests), FILES))
    assert not requests.began
