"""The Compact schemas of one node's log. Its manifest has all of them, so their number and size are
limited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from imap_wal.agent.payloads import schemas_of
from imap_wal.read.file_scan import from_manifest
from imap_wal.schemas import BadSchema, Schema, sound_schemas

SCHEMAS_MAX = 10_000
SCHEMAS_BYTES_MAX = 16 * 1024 * 1024


class NodeSchemas:
    """Used by the serving thread. The schemas that this agent wrote, or found in its node's
    manifest."""

    def __init__(self, metadata: Iterable[tuple[Any, ...]]) -> None:
        """`metadata`: of the node's manifest."""
        self._known: dict[int, Schema] = {}
        self._bytes = 0
        self._add(sound_schemas(map(from_manifest, metadata))[0])

    def take(self, payload: bytes, count: int, others: Mapping[int, Schema]) -> None:
        """Check the schemas of a metadata message, and add them. `others`: of all logs. Raises
        ValueError, and `BadSchema` if one is not valid, if another one has its id, or if there are
        too many."""
        schemas = schemas_of(payload, count, {**others, **self._known})
        new = {number: schema for number, schema in schemas.items() if number not in self._known}
        size = sum(len(schema.to_bytes()) for schema in new.values())
        if len(self._known) + len(new) > SCHEMAS_MAX or self._bytes + size > SCHEMAS_BYTES_MAX:
            raise BadSchema(
                f"this node has {len(self._known)} schemas of {self._bytes} bytes; the limits "
                f"are {SCHEMAS_MAX} schemas and {SCHEMAS_BYTES_MAX} bytes together"
            )
        self._add(new)

    def _add(self, schemas: Mapping[int, Schema]) -> None:
        for number, schema in schemas.items():
            if number not in self._known:
                self._known[number] = schema
                self._bytes += len(schema.to_bytes())
