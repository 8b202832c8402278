"""What Spark does with the reader of a stream, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

from imap_wal.context import Context
from imap_wal.retention.archive import archive_sealed
from imap_wal.write.node_log import NodeLog
from pyspark_imap_wal.options import Options
from pyspark_imap_wal.stream import ImapWalStreamReader

Line = tuple[str, Any, Any, Any, Any, int]


def reader(url: str, **options: str) -> ImapWalStreamReader:
    chosen = Options.parse({"path": url, **options})
    return ImapWalStreamReader(chosen, chosen.kinds())


class Engine:
    """What Spark does with a reader: it records the end of a batch before the batch is read,
    and commits an end when the next batch is planned."""

    def __init__(self, url: str, **options: str) -> None:
        self.url, self.options = url, options
        self.reader = reader(url, **options)
        self.start = self.reader.initialOffset()

    def restart(self) -> None:
        self.reader.stop()
        self.reader = reader(self.url, **self.options)

    def batch(
        self,
        rows_max: int = 0,
        between: Callable[[], None] = lambda: None,
        *,
        bytes_max: int = 0,
    ) -> list[Line]:
        """The next batch, read twice, with a crash between."""
        limit = ReadMaxRows(rows_max) if rows_max else None
        end = self.reader.latestOffset(self.start, ReadMaxBytes(bytes_max) if bytes_max else limit)
        assert end == json.loads(json.dumps(end))
        if self.start["start"]:
            assert self.reader.initialOffset() == self.start, "Spark asks again before it reads"
        once = self.lines(end)
        between()
        self.restart()
        assert self.lines(end) == once, "the same rows after a crash"
        self.start = end
        self.reader.commit(end)
        return once

    def lines(self, end: dict[str, Any]) -> list[Line]:
        return sorted(
            (
                (
                    line["node"],
                    *(line[name] for name in ("epoch", "segment", "frame", "index")),
                    line["request"],
                )
                for part in self.reader.partitions(self.start, end)
                for batch in self.reader.read(part)
                for line in batch.to_pylist()
            ),
            key=repr,
        )

    def rest(self, rows_max: int = 0) -> list[Line]:
        """All batches until there is nothing new."""
        found: list[Line] = []
        while True:
            before = self.start
            found += self.batch(rows_max)
            if self.start == before:
                return found


def archive(log: NodeLog) -> None:
    who = log.identity
    archive_sealed(
        Context(log.store), who.node_folder, who.node, log.manifests, writing=log.unsealed
    )
