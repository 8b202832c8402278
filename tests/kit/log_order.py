"""Archives as versions before format 4 wrote them: in the order of the log."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from imap_wal.manifest.archives import Archive
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.parquet.columns import ARCHIVE_SCHEMA, nodes_of, to_batch, to_positions, to_rows
from imap_wal.parquet.reader import batches
from imap_wal.parquet.writer import ParquetFile
from imap_wal.security.encryption import keys_of
from storage_backends import SegmentStore


def as_before(store: SegmentStore, manifests: ManifestLog[NodeManifest], every: int = 1) -> int:
    """Turn every archive of a node (or only some) into one of an earlier version. Returns how
    many."""
    known = tuple(manifests.read()[1].archives)
    chosen = {each.path for each in known if each.unpacked and hash(each.path) % every == 0}
    older = [_older(store, each) if each.path in chosen else each for each in known]
    by_key = any(each.unpacked for each in older)
    # A manifest with lists is not followed by one that has all archives itself.
    manifests.update(lambda now: replace(now, archives=()))
    manifests.update(lambda now: replace(now, archives=tuple(older), by_key=by_key))
    for path in chosen:
        store.delete(path)
    return len(chosen)


def promise_order(store: SegmentStore, manifests: ManifestLog[NodeManifest]) -> str:
    """Turn a node's only archive into one in the order of the log, of which the manifest says that
    it is sorted by key. Returns its path."""
    assert as_before(store, manifests) == 1
    (older,) = manifests.read()[1].archives
    manifests.update(lambda now: replace(now, archives=()))
    manifests.update(lambda now: replace(now, archives=(replace(older, unpacked=10_000),)))
    return older.path


def _older(store: SegmentStore, archive: Archive) -> Archive:
    with tempfile.TemporaryDirectory() as folder:
        file = ParquetFile(Path(folder), ARCHIVE_SCHEMA, keys_of(store))
        for batch in batches(store, archive.path, by_position=True):
            rows = to_rows(batch)
            file.write(to_batch(rows, nodes_of(batch), to_positions(batch)), 0)
        path = archive.path.replace(".parquet", "0ed.parquet")
        size, checksum = file.publish(store, path)
    return replace(archive, path=path, bytes=size, checksum=checksum, unpacked=0)
