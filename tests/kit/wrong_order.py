"""An archive whose rows are in another order than it promises."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from imap_wal.context import Context
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.parquet.columns import ARCHIVE_SCHEMA, nodes_of, to_batch, to_positions, to_rows
from imap_wal.parquet.reader import batches
from imap_wal.parquet.writer import ParquetFile
from imap_wal.security.encryption_keys import NO_KEYS
from storage_backends import SegmentStore


def break_order(store: SegmentStore, manifests: ManifestLog[NodeManifest]) -> str:
    """Replace a node's only archive by one whose rows are in the order of the log. It is large
    enough to be read directly. Returns its path."""
    (archive,) = manifests.read()[1].archives
    with tempfile.TemporaryDirectory() as folder:
        file = ParquetFile(Path(folder), ARCHIVE_SCHEMA, NO_KEYS)
        for batch in batches(Context(store), archive.path, by_position=True):
            rows = to_rows(batch)
            file.write(to_batch(rows, nodes_of(batch), to_positions(batch)), 0)
        path = archive.path.replace(".parquet", "0ed.parquet")
        size, checksum = file.publish(store, path)
    wrong = replace(archive, path=path, bytes=size, checksum=checksum, unpacked=10_000)
    manifests.update(lambda now: replace(now, archives=Listed([wrong])))
    store.delete(archive.path)
    return path
