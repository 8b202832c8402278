"""A stream whose log is replaced by an older copy, which is then written: it has the beginning of
one of both histories, and never a mixture."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from imap_wal.clock import SystemRandomness
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, ImapWalError, OtherHistory
from imap_wal.layout import Identity
from imap_wal.log import LogReader
from imap_wal.manifest.readers import readers_of
from imap_wal.placement import Placed
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from pyspark_imap_wal.batch import ImapWalReader
from pyspark_imap_wal.changes.batch import ImagesReader
from pyspark_imap_wal.changes.history import HistoryReader
from pyspark_imap_wal.options import Options
from pyspark_imap_wal.stream import ImapWalStreamReader
from storage_backends import SegmentStore
from storage_backends.local import LocalStore
from storage_backends.objects import LocalObjects
from tests.histories import put
from tests.kit.effort import every
from tests.kit.logs import SMALL, append
from tests.kit.nth_call import AtCall, counted, replaced
from tests.kit.stream_engine import Engine, archive
from tests.support import FakeClock

pytestmark = pytest.mark.spark


def written(place: SegmentStore, *values: int, archived: bool = False) -> None:
    identity, clock = Identity("ns", "c", "n1"), FakeClock()
    log = open_node_log(
        LogContext(Context(place, clock=clock, randomness=SystemRandomness()), identity, SMALL)
    )
    for value in values:
        append(log, put(f"k{value}", value, (1, 1, log.epoch, value)))
    if archived:
        log.rotate()
        archive(log)
    log.close()


def put_back(folder: Path) -> None:
    """The copy that is in `copy`."""
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("copy"), folder)


def batches(gate: AtCall, count: int) -> str:
    """The values of some batches of a stream."""
    reader = ImapWalStreamReader(Options.parse({"path": gate.url}), {"value": "binary"})
    start, found = reader.initialOffset(), ""
    for _ in range(count):
        end = reader.latestOffset(start, None)
        rows = [
            line["value"].decode()
            for part in reader.partitions(start, end)
            for batch in reader.read(part)
            for line in batch.to_pylist()
        ]
        start, found = end, found + "".join(rows)
        reader.commit(end)
    return found


@every(2)
@pytest.mark.parametrize("kind", [LocalStore, LocalObjects])
def test_a_log_replaced_at_any_call_of_a_stream(
    tmp_path: Path, kind: type[LocalStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, copy = kind(str(tmp_path / "original")), kind(str(tmp_path / "copy"))
    written(original, 0, 1)
    shutil.copytree(tmp_path / "original", tmp_path / "copy", dirs_exist_ok=True)
    written(original, 2, 3)
    written(copy, 4, 5, 6)
    histories = ("0123", "01456")
    ends: set[Any] = set()
    gate = whole = counted(original)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(gate, place))
    assert batches(gate, 2) == histories[0]
    for number in range(whole.calls):
        gate = replaced(original, copy, number)
        try:
            found = batches(gate, 2)
        except ImapWalError as error:
            ends.add(type(error))
        else:
            assert found in histories, f"call {number}: {found}"
            ends.add(found)
    assert {"01456", OtherHistory} <= ends


@pytest.mark.parametrize("restarted", [False, True])
def test_a_refused_stream_publishes_no_position(tmp_path: Path, restarted: bool) -> None:
    """A registered reader at a place of the former log: the new one would keep nothing for it."""
    place = LocalStore(str(tmp_path / "log"))
    written(place, 0, 1)
    engine = Engine(place.url, reader="daily")
    engine.rest()
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    written(place, 2, 3)
    end = engine.reader.latestOffset(engine.start, None)
    put_back(tmp_path / "log")
    written(place, 4)
    registered = readers_of(place, "ns/c")
    with pytest.raises(OtherHistory):
        if restarted:
            engine.restart()
            engine.reader.latestOffset(end, None)
        else:
            engine.reader.commit(end)
    assert readers_of(place, "ns/c") == registered


@every(3)
@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize(
    "more", [{}, {"mode": "latest"}, {"changes": "images"}, {"table": "history"}]
)
def test_a_planned_read_has_no_rows_of_another_history(
    tmp_path: Path, more: dict[str, str], archived: bool
) -> None:
    """The log is replaced before the tasks run. They looked for an archive that was gone, and read
    what the copy has at these positions: a part of its rows."""
    place = LocalStore(str(tmp_path / "log"))
    written(place, 0, 1, archived=archived)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    written(place, 2, 3, archived=archived)
    options = Options.parse({"path": place.url, **more})
    kinds = {"table": HistoryReader, "changes": ImagesReader}
    reader = kinds.get(next(iter(more), ""), ImapWalReader)(options, options.kinds())
    tasks = list(reader.partitions())
    put_back(tmp_path / "log")
    written(place, 4, 5, 6, archived=archived)
    with pytest.raises((OtherHistory, CorruptLog)):
        for task in tasks:
            list(reader.read(task))


def test_images_start_at_no_position_of_another_history(tmp_path: Path) -> None:
    place = LocalStore(str(tmp_path / "log"))
    written(place, 0, 1)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    written(place, 2)
    last = LogReader(place.url, namespace="ns", cluster="c", node="n1").read()
    position = json.dumps({"n1": str([record.position for record in last][-1])})
    put_back(tmp_path / "log")
    written(place, 4, 5)
    for name in ("starting", "as_of"):
        options = Options.parse({"path": place.url, "changes": "images", name: position})
        with pytest.raises(OtherHistory):
            ImagesReader(options, options.kinds()).partitions()
