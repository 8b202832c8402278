"""The log of a Delta table whose files are those of a snapshot: read, and appended to.

    {folder}/_delta_log/{version}.json                 the actions of one commit, one per line
    {folder}/_delta_log/{version}.checkpoint.parquet   all actions that count at that version
    {folder}/_delta_log/_last_checkpoint               where readers begin

A commit creates the file of the next version exclusively, so of two publications at once one begins
again. Source: the protocol of Delta Lake, github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import chain
from typing import Any, TypeAlias, TypedDict

from msgspec import convert
from msgspec.json import Decoder

from imap_wal.errors import CorruptLog, InvalidSetting
from imap_wal.version import VERSION
from storage_backends import AlreadyExists, NotFound, SegmentStore, StorageError
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.parquet as pq

Action: TypeAlias = Mapping[str, Any]


class AddAction(TypedDict):
    """The action `add`. The fields that another program may have written too are not read."""

    path: str
    size: int
    stats: str
    partitionValues: Mapping[str, str]
    modificationTime: int
    dataChange: bool


class RemoveAction(TypedDict):
    path: str


class TxnAction(TypedDict):
    appId: str
    version: int


class CommitLine(TypedDict, total=False):
    """A line of a commit: one of these actions, or another one."""

    commitInfo: Mapping[str, Any]
    protocol: Mapping[str, Any]
    metaData: Mapping[str, Any]
    txn: TxnAction
    add: AddAction
    remove: RemoveAction


_parsed = Decoder(CommitLine).decode
ENGINE = "imap-wal"
FEATURE = "imapWalPublished"
"""A feature that no other writer supports, so none changes the table. Readers do not look at it."""
APP = "imap-wal"
CHECKPOINT_EVERY = 10
_NAME = re.compile(r"/_delta_log/([0-9]{20})\.(json|checkpoint\.parquet)$")
_STRINGS = pa.map_(pa.string(), pa.string())
_CHECKPOINT = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _STRINGS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    (
                        "format",
                        pa.struct([("provider", pa.string()), ("options", _STRINGS)]),
                    ),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", _STRINGS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)
_MAPS = {"partitionValues", "configuration", "options"}


@dataclass(frozen=True, slots=True)
class DeltaState:
    """What a table has at its newest version; -1: there is no table. `files`: path → its `add`.
    `generation`: of the snapshot that was published last."""

    version: int = -1
    files: Mapping[str, Action] = field(default_factory=dict)
    metadata: Action | None = None
    protocol: Action | None = None
    generation: int = 0

    def after(self, actions: Iterable[Action]) -> DeltaState:
        """The state after one more commit."""
        files, state = dict(self.files), self
        for kind, content in chain.from_iterable(action.items() for action in actions):
            if kind == "add":
                files[content["path"]] = content
            elif kind == "remove":
                files.pop(content["path"], None)
            elif kind == "metaData":
                state = replace(state, metadata=content)
            elif kind == "protocol":
                state = replace(state, protocol=content)
            elif kind == "txn" and content["appId"] == APP:
                state = replace(state, generation=content["version"])
        return replace(state, version=self.version + 1, files=files)


class DeltaLog:
    """The log of the table in a folder."""

    def __init__(self, store: SegmentStore, folder: str) -> None:
        self._store, self._folder = store, folder

    def path(self, version: int, ending: str = "json") -> str:
        return f"{self._folder}/_delta_log/{version:020d}.{ending}"

    def read(self) -> DeltaState:
        """The newest state. Raises `CorruptLog` for a version that is missing or cannot be parsed,
        and `InvalidSetting` if another program has changed the table."""
        checkpoints, commits = self._names()
        state = DeltaState()
        if checkpoints:
            state = self._checkpoint(checkpoints[-1])
        for version in range(state.version + 1, max(commits, default=-1) + 1):
            state = state.after(self._commit(version))
        return state

    def _names(self) -> tuple[list[int], list[int]]:
        """The versions of checkpoints and of commits."""
        found: dict[str, list[int]] = {"json": [], "checkpoint.parquet": []}
        for file in self._store.list(f"{self._folder}/_delta_log"):
            if matched := _NAME.search(file.path):
                found[matched[2]].append(int(matched[1]))
        return sorted(found["checkpoint.parquet"]), sorted(found["json"])

    def _commit(self, version: int) -> Sequence[CommitLine]:
        path = self.path(version)
        try:
            lines = self._store.read(path).splitlines()
            actions = [_parsed(line) for line in lines if line.strip()]
        except (ValueError, NotFound) as error:
            reason = f"this is not a readable commit of a Delta table: {error}"
            raise CorruptLog(path, 0, reason, _ADVICE) from error
        about = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        engine = str(about.get("engineInfo", ""))
        if not engine.startswith(ENGINE):
            raise InvalidSetting(
                f"{path} was written by {engine or 'another program'}: imap-wal publishes only "
                "into tables that nothing else changes. Delete the folder _delta_log, and publish "
                "again; no entry of the map is lost by that"
            )
        return actions

    def _checkpoint(self, version: int) -> DeltaState:
        path = self.path(version, "checkpoint.parquet")
        try:
            with self._store.open_input(path) as source:
                rows = pq.read_table(source).to_pylist()
            actions = [
                convert({kind: _plain(content)}, CommitLine)
                for row in rows
                for kind, content in row.items()
                if content is not None
            ]
        except (pa.ArrowException, ValueError, NotFound) as error:
            reason = f"this is not a readable checkpoint of a Delta table: {error}"
            raise CorruptLog(path, 0, reason, _ADVICE) from None
        return replace(DeltaState().after(actions), version=version)

    def commit(
        self, former: DeltaState, actions: Sequence[Action], versions_kept: int
    ) -> DeltaState:
        """Publish the version after `former`. If the last checkpoint is ten versions old, write the
        next one, and delete what no reader of the last versions needs.

        No two commits have the same bytes, see `commit_info`: so a commit whose answer was lost, or
        that a driver sent twice, is found again. Raises `AlreadyExists` if another process has
        published this version, or so many later ones that this one may have been deleted."""
        lines = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        state = former.after(actions)
        path, content = self.path(state.version), lines.encode()
        try:
            self._store.create(path, content)
        except StorageError as error:
            try:
                if self._store.read(path) != content:
                    raise error
            except NotFound:
                raise error from None
        checkpoints, commits = self._names()
        newest = max(checkpoints, default=0)
        if newest > state.version:  # this one may have been deleted before
            raise AlreadyExists("later versions of the table were published", path)
        if state.version - newest >= CHECKPOINT_EVERY:
            self._write_checkpoint(state)
            self._delete_old(checkpoints, commits, state.version - versions_kept)
        return state

    def _write_checkpoint(self, state: DeltaState) -> None:
        actions = [
            {"protocol": state.protocol},
            {"metaData": state.metadata},
            {"txn": {"appId": APP, "version": state.generation}},
            *({"add": content} for content in state.files.values()),
        ]
        sink = BytesIO()
        pq.write_table(pa.Table.from_pylist(actions, _CHECKPOINT), sink)
        self._store.replace(self.path(state.version, "checkpoint.parquet"), sink.getvalue())
        pointer = {"version": state.version, "size": len(actions)}
        self._store.replace(
            f"{self._folder}/_delta_log/_last_checkpoint", json.dumps(pointer).encode()
        )

    def _delete_old(self, checkpoints: Sequence[int], commits: Sequence[int], oldest: int) -> None:
        """Delete what is not needed to read the version `oldest` or a later one."""
        oldest = max((version for version in checkpoints if version <= oldest), default=0)
        gone = [self.path(version) for version in commits if version < oldest]
        gone += [
            self.path(version, "checkpoint.parquet") for version in checkpoints if version < oldest
        ]
        self._store.discard_all(gone)


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """An action of a checkpoint, as it is in JSON: pyarrow has maps as lists of pairs."""
    return {
        name: dict(value) if name in _MAPS else _plain(value) if isinstance(value, dict) else value
        for name, value in content.items()
        if value is not None
    }


def first_actions(schema: str, table_id: str, name: str, now_ms: int) -> list[Action]:
    """The actions that begin a table. VACUUM of another program must not delete files that are not
    of the table: they may be of the log."""
    return [
        {
            "protocol": {
                "minReaderVersion": 1,
                "minWriterVersion": 7,
                "writerFeatures": [FEATURE],
            }
        },
        {
            "metaData": {
                "id": table_id,
                "name": name,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": [],
                "configuration": {"delta.deletedFileRetentionDuration": "interval 5200 weeks"},
                "createdTime": now_ms,
            }
        },
    ]


def commit_info(now_ms: int, unique: str, parameters: Mapping[str, str]) -> Action:
    """The first action of a commit. `unique`: no other commit has it."""
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "PUBLISH",
            "operationParameters": dict(parameters),
            "engineInfo": f"{ENGINE}/{VERSION}",
            "txnId": unique,
        }
    }


_ADVICE = "delete the folder _delta_log, and publish again: no entry of the map is lost by that"
