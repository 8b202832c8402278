"""Logs that are used by themselves, without maps: made, opened and read by a test."""

from __future__ import annotations

from typing import Any

from imap_wal import log
from imap_wal.log import START, Log, LogReader, Position
from storage_backends import SegmentStore

SMALL: dict[str, Any] = {"segment_bytes": 300, "preallocate": False}


def create(storage: SegmentStore, **options: Any) -> Log:
    return log.create(storage.url, storage=storage, **{**SMALL, **options})


def reopen(storage: SegmentStore, **options: Any) -> Log:
    return log.open(storage.url, storage=storage, **{**SMALL, **options})


def reading(storage: SegmentStore, **options: Any) -> LogReader:
    return LogReader(storage.url, storage=storage, **options)


def fill(opened: Log, *values: Any, name: str = "m") -> list[Position]:
    return [opened.append(name, (b"k", str(value).encode())) for value in values]


def texts_of(records: Any) -> list[str]:
    return [(record.entry.value or b"").decode() for record in records]


def everywhere(opened: Log, storage: SegmentStore, places: list[Position]) -> None:
    """Reading from every position, and from between them, returns exactly the records from there
    on."""
    for source in (opened, reading(storage)):
        assert [record.position for record in source.read(START)] == places
        for index, place in enumerate(places):
            assert [record.position for record in source.read(place)] == places[index:]
            assert [record.position for record in source.read(str(place.after()))] == places[
                index + 1 :
            ]
            between = place._replace(frame=place.frame - 1, index=5)
            assert [record.position for record in source.read(between)] == places[index:]
