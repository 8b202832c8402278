"""Large values under a small bound: memory depends on the bound, not on the values."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.decoder import Decoder
from imap_wal.entry import KEY
from rewrite_cli.commands.reading import dump, export
from rewrite_cli.entries.lines import Line
from tests.histories import put
from tests.kit.effort import every, thorough

VALUES = 160
VALUE_BYTES = 1 << 20
BOUND = 32 << 20
MIB = 1 << 20

WORK = f"""
import sys
import pyarrow.parquet
from imap_wal.entry import KEY, VALUE
from imap_wal.context import Context, open_context
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.report import memory_max_bytes
from imap_wal.rewrite.run import rewrite
from storage_backends import open_store

what, url = sys.argv[1:]
settings = Settings(restore_memory_bytes={BOUND})
log = ClusterLog(open_context(url), "default", "embedded")
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")  # reset the peak
base = memory_max_bytes()
if what == "rewrite":
    count = rewrite(log, LocalEngine(settings)).maps[0].live
else:
    view = MaterializedView(log, settings)
    view.catch_up()
    count = sum(len(keys) for keys in view.keys("big"))
    for rows in view.rows("big"):
        for row in rows:
            assert row[VALUE][:4] == row[KEY][-4:], row[KEY]
            count -= 1
    assert count == 0
    count = len(view.load("big", [b"key-0000", b"key-0001"])) + {VALUES - 2}
    view.close()
print(count, memory_max_bytes() - base)
"""


def run(what: str, folder: Path) -> tuple[int, int]:
    """Run it in a process of its own: the number of entries, and the memory that the process
    used."""
    environment = {**os.environ, "PYTHONPATH": str(Path(imap_wal.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", WORK, what, folder.as_uri()],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, taken = done.stdout.split()
    return int(count), int(taken)


@thorough
def test_large_values_restore_and_rewrite_within_memory_bound(tmp_path: Path) -> None:
    filler = os.urandom(VALUE_BYTES)
    with imap_wal.open(tmp_path.as_uri(), node="n1", durability="os") as store:
        items = store.map("big", raw=True)
        for number in range(VALUES):
            items[b"key-%04d" % number] = b"%04d" % number + filler
    took: dict[str, int] = {}
    for step, what in (
        ("from segments", "restore"),
        ("rewrite", "rewrite"),
        ("from the snapshot", "restore"),
    ):
        count, took[step] = run(what, tmp_path)
        assert count == VALUES
    # 160 MiB of values; a page of 10,000 rows would be all of them, several times.
    assert took["from segments"] < 4 * BOUND, took
    assert took["rewrite"] < 8 * BOUND, took
    assert took["from the snapshot"] < 8 * BOUND, took
    with imap_wal.open(
        tmp_path.as_uri(), node="n1", durability="os", restore_memory_bytes=BOUND
    ) as store:
        items = store.map("big", raw=True)
        assert len(items) == VALUES and items[b"key-0007"][:4] == b"0007"


@every(3)
@pytest.mark.parametrize("form", export.FORMATS)
def test_an_export_keeps_few_large_values_in_memory(tmp_path: Path, form: str) -> None:
    def entries() -> Any:
        for number in range(VALUES):
            yield dict.fromkeys(export.COLUMNS, "") | {
                "key": str(number),
                "value": "v" * VALUE_BYTES,
            }

    tracemalloc.start()
    try:
        assert export.write(form, tmp_path / f"out.{form}", entries()) == VALUES
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


def test_a_dump_sorts_a_large_snapshot_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "SORT_BYTES", 4 * MIB)
    decoder = Decoder(())
    times = [number * 7919 % 1000 for number in range(1000)]

    def lines() -> Any:
        for time in times:
            row = put(f"key-{time}", "v" * 100_000, (1, 1, 1, time), timestamp_ms=time)
            yield Line(time, "c", "n1", None, row, decoder)

    tracemalloc.start()
    try:
        found = [
            (line.timestamp_ms, line.row[KEY], line.node, line.decoder is decoder)
            for line in dump.by_time(lines())
        ]
        assert tracemalloc.get_traced_memory()[1] < 48 * MIB
    finally:
        tracemalloc.stop()
    assert found == [(time, b"key-%d" % time, "n1", True) for time in range(1000)]
