"""The columns of each table: name → type of Spark."""

from __future__ import annotations

ENTRIES = "entries"
"""The table that is read without the option `table`."""

ENTRY_COLUMNS = {
    "namespace": "string",
    "cluster": "string",
    "map": "string",
    "key": "binary",
    "key_class": "string",
    "value": "binary",
    "value_class": "string",
    "deleted": "boolean",
    "timestamp_ms": "bigint",
    "expires_at_ms": "bigint",
    "partition": "bigint",
    "incarnation": "bigint",
    "partition_version": "bigint",
    "session": "bigint",
    "request": "bigint",
    "node": "string",
}
POSITION_COLUMNS = dict.fromkeys(("epoch", "segment", "frame", "index"), "bigint")
"""NULL in rows of a snapshot."""
CHANGE_COLUMNS = {
    "_change_type": "string",
    "_commit_version": "string",
    "_commit_timestamp": "timestamp",
}
"""Columns of a read with images: what the change was, its order as text, and its time."""
DECODED_COLUMNS = {"key_text": "string", "value_text": "string"}

_OF_LOG = {"namespace": "string", "cluster": "string"}
METADATA_TABLES = {
    "files": {
        **_OF_LOG,
        "kind": "string",
        "path": "string",
        "node": "string",
        "map": "string",
        "state": "string",
        "rows": "bigint",
        "bytes": "bigint",
        "checksum": "bigint",
        "first_position": "string",
        "last_position": "string",
        "generation": "bigint",
        "first_key": "binary",
    },
    "snapshots": {
        **_OF_LOG,
        "map": "string",
        "generation": "bigint",
        "files": "bigint",
        "live": "bigint",
        "tombstones": "bigint",
        "bytes": "bigint",
        "created_ms": "bigint",
        "until_ms": "bigint",
        "dropped": "bigint",
        "marks": "map<string,string>",
        "kept_for": "string",
    },
    "nodes": {
        **_OF_LOG,
        "node": "string",
        "state": "string",
        "directory": "string",
        "incarnation": "bigint",
        "epoch": "bigint",
        "segments": "bigint",
        "segment_bytes": "bigint",
        "archives": "bigint",
        "archive_rows": "bigint",
        "archive_bytes": "bigint",
        "removed_position": "string",
        "sign": "string",
        "readers": "map<string,string>",
    },
    "readers": {
        **_OF_LOG,
        "reader": "string",
        "kind": "string",
        "node": "string",
        "position": "string",
        "end_position": "string",
        "unread_bytes": "bigint",
        "updated_ms": "bigint",
    },
}
HISTORY = "history"
VERSION_COLUMNS = {"cleared": "boolean", "position": "string", "known_from": "string"}
"""Columns of the table `history`: whether a clear deleted the key; the position, NULL in a
snapshot; and the position from which on the node's log is complete, NULL if nothing was removed."""
TABLES = (ENTRIES, HISTORY, *METADATA_TABLES)
