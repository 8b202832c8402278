"""A Delta table: `_delta_log` beside the Parquet files of a map's snapshot."""

from __future__ import annotations

import json

from imap_wal.publish.delta_log import (
    APP,
    Action,
    DeltaLog,
    DeltaState,
    commit_info,
    first_actions,
)
from imap_wal.publish.lake_table import COLUMNS, DataFile, NextVersion, TableState, folder_of
from imap_wal.read.cluster import ClusterLog


class DeltaTable:
    """The Delta table of a map. See `imap_wal.publish.lake_table.LakeTable`."""

    kind = "delta"
    id, is_missing = "", False
    """Its folder is that of the map, and the first commit makes it."""

    def __init__(self, log: ClusterLog, name: str) -> None:
        self.name, self._log = name, log
        folder = folder_of(log, name)
        self.place = f"{log.store.url.removeprefix('file://').rstrip('/')}/{folder}"
        self._delta = DeltaLog(log.store, folder)
        self._read = DeltaState()
        """What the last `read` has found."""

    def make(self) -> None:
        """The first commit makes the table."""

    def expire(self, keep: int) -> None:
        """`commit` deletes old versions."""

    def read(self) -> TableState:
        self._read = self._delta.read()
        return _plain(self._read)

    def commit(self, former: TableState, following: NextVersion, keep: int) -> TableState:
        now_ms, randomness = self._log.clock.now_ms(), self._log.randomness
        actions: list[Action] = [commit_info(now_ms, randomness.name(), following.parameters)]
        if former.version < 0:
            actions += first_actions(_schema(), randomness.name(), self.name, now_ms)
        transaction = {"appId": APP, "version": following.generation, "lastUpdated": now_ms}
        actions.append({"txn": transaction})
        actions += [
            {"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": True}}
            for path in following.gone
        ]
        actions += [{"add": _added(file, now_ms)} for file in following.added]
        return _plain(self._delta.commit(self._read, actions, keep))


def _plain(state: DeltaState) -> TableState:
    files = {
        path: DataFile(path, content["size"], json.loads(content["stats"])["numRecords"])
        for path, content in state.files.items()
    }
    return TableState(state.version, state.generation, files)


def _added(file: DataFile, now_ms: int) -> Action:
    return {
        "path": file.path,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": json.dumps({"numRecords": file.rows, **file.statistics}),
    }


def _schema() -> str:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in COLUMNS.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})
