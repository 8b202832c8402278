"""Streams with images of changes, without Spark's JVM."""

from __future__ import annotations

from typing import Any

from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from storage_backends import SegmentStore
from tests.kit.logs import SMALL, cluster
from tests.kit.stream_engine import Engine


class ImageEngine(Engine):
    """The engine of streams, with images in the order in which they are read."""

    def __init__(self, url: str, **options: str) -> None:
        super().__init__(url, changes="images", **options)

    def images(self, rows_max: int = 0) -> list[dict[str, Any]]:
        """The next batch."""
        found: list[Any] = self.batch(rows_max)
        return found

    def lines(self, end: dict[str, Any]) -> list[Any]:
        return [
            line
            for part in self.reader.partitions(self.start, end)
            for batch in self.reader.read(part)
            for line in batch.to_pylist()
        ]


def shown(lines: list[dict[str, Any]]) -> list[tuple[str, str, str, int]]:
    return [
        (line["_change_type"], line["key"].decode(), line["value"].decode(), line["request"])
        for line in lines
    ]


def compacted(store: SegmentStore, *maps: str) -> None:
    rewrite(cluster(store), LocalEngine(SMALL), maps=list(maps) or None, skew_ms_max=2**60)
    prune(cluster(store))
