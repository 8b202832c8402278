"""A log that already has entries which no writer accepts: impossible numbers, other shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal import entry
from imap_wal.context import Context, open_context
from imap_wal.entry import KEY
from imap_wal.errors import CorruptLog
from imap_wal.format import CLEARS, ENTRIES, Position
from imap_wal.layout import Identity
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import node_scans
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log
from tests.cli.conftest import Run, run
from tests.kit.effort import every

__all__ = ["run"]

GOOD = ("m", b"a", "", b"1", "", False, 1, 0, 3, (1, 1, 1, 1))
IDENTITY = Identity("default", "c", "n1")


def changed(**fields: Any) -> tuple[Any, ...]:
    """An upsert of the key b"bad" with these fields."""
    order: Any = [1, 1, 1, 2]
    for index, name in enumerate(("incarnation", "partition_version", "session", "request")):
        order[index] = fields.pop(name, order[index])
    return tuple(
        entry.DataEntry("m", b"bad", "", b"2", "", False, 1, 0, 3, tuple(order))._replace(**fields)
    )


NUMBERS: list[tuple[str, Any]] = [
    ("timestamp_ms", 2**64 - 1),
    ("expires_at_ms", 2**64 - 1),
    ("partition", 2**64 - 1),
    ("partition_version", -1),
    ("partition_version", 2**64 - 1),
    ("incarnation", 1.0),
    ("session", 1.0),
    ("session", True),
    ("request", 2**64 - 1),
]


def opened(url: str) -> NodeLog:
    return open_node_log(
        LogContext(
            open_context(url),
            IDENTITY,
            Settings(preallocate=False),
        ),
        holder="the test",
    )


def written(url: str, *rows: Any, kind: int = ENTRIES, clean: bool = True) -> Position:
    """Make a log of one frame with these values. Returns the position of the last."""
    log = opened(url)
    place = log.write(kind, len(rows), [b"".join(map(msgpack.packb, rows))])
    log.sync()
    log.close(clean)
    return place._replace(index=len(rows) - 1)


def restored(url: str) -> dict[bytes, entry.Row]:
    """What a restore reads."""
    cluster = ClusterLog(open_context(url), "default", "c")
    found = {}
    for scan in node_scans(cluster.state(), "n1"):
        for changes in read_scan(Context(cluster.store), scan):
            found |= {row[KEY]: row for row in changes.rows}
    return found


UNUSABLE: list[tuple[str, Any, int]] = [
    ("a clear of 0 partitions", ("m", None, "", None, "", True, 1, 0, 0, (1, 1, 1, 2)), CLEARS),
    (
        "a clear of 0 partitions in a frame of entries",
        ("m", None, "", None, "", True, 1, 0, 0, (1, 1, 1, 2)),
        ENTRIES,
    ),
    ("a clear of partition 5 of 3", ("m", None, "", None, "", True, 1, 3, 5, (1, 1, 1, 2)), CLEARS),
    ("a key of text", changed(key="bad"), ENTRIES),
    ("a value of text", changed(value="2"), ENTRIES),
    ("a map of bytes", changed(map=b"m"), ENTRIES),
    ("no map", changed(map=""), ENTRIES),
    ("an upsert without value", changed(value=None), ENTRIES),
    ("a tombstone with value", changed(deleted=True), ENTRIES),
    ("a version of text", changed(partition_version="1"), ENTRIES),
    ("a version of one half", changed(partition_version=0.5), ENTRIES),
    ("an expiry of NaN", changed(expires_at_ms=float("nan")), ENTRIES),
    ("an expiry of infinity", changed(expires_at_ms=float("inf")), ENTRIES),
    ("an order of three", (*GOOD[:9], (1, 1, 1)), ENTRIES),
    ("nine fields", GOOD[:9], ENTRIES),
    ("a number", 7, ENTRIES),
    ("a map", {1: 2}, ENTRIES),
    *((f"{field} {value!r}", changed(**{field: value}), ENTRIES) for field, value in NUMBERS),
]


@every(4)
@pytest.mark.parametrize(
    ("row", "kind"), [(row, kind) for _, row, kind in UNUSABLE], ids=[what for what, *_ in UNUSABLE]
)
def test_an_unusable_entry_is_an_error_with_its_position(
    url: str, run: Run, row: Any, kind: int
) -> None:
    """For a reader, for `verify`, and for an open that has to read the end of the log."""
    position = written(url, GOOD, row, kind=kind)
    with pytest.raises(CorruptLog, match=f"the entry at {position} cannot be used") as raised:
        restored(url)
    assert raised.value.offset == position.frame
    found = run("verify", url, "-o", "json")
    assert found.code == 3 and str(position) in found.out
    written(url, GOOD, row, kind=kind, clean=False)
    with pytest.raises(CorruptLog, match="its content is not entries"):
        opened(url)


@every(10)
@pytest.mark.parametrize("moment", [-(2**63), -62_135_596_800_001, 253_402_300_800_000, 2**63 - 1])
@pytest.mark.parametrize("field", ["timestamp_ms", "expires_at_ms"])
def test_a_moment_that_no_year_has_stops_no_command(
    tmp_path: Path, run: Run, field: str, moment: int
) -> None:
    """A member may set it: a time to live of all 64 bits, for example."""
    url = f"file://{tmp_path}/log"
    written(url, GOOD, changed(**{field: moment}))
    shown = ["@" + str(moment)] if field == "timestamp_ms" or moment > 0 else []
    for words in (
        ["dump", url],
        ["dump", url, "-o", "json"],
        ["export", url],
        ["export", url, "--to", tmp_path / "x.parquet"],
        ["query", url, "SELECT * FROM m"],
        ["verify", url],
        ["stat", url],
        ["archive", url],
        ["rewrite", url],
        ["restore", url],
        ["dump", url],
    ):
        done = run(*words)
        assert done.code == 0, done.err
        if words == ["export", url]:
            assert all(each in done.out for each in shown)
