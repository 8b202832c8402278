"""What makes a Parquet file one of imap-wal: the fields of its footer, and how it is encrypted.
`imap_wal.parquet.reader` reads its rows, `imap_wal.parquet.writer` writes it."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, BinaryIO

from imap_wal.context import Context
from imap_wal.errors import CorruptLog, EncryptionError, Forged, ImapWalError, InvalidSetting
from imap_wal.security.encryption import archive_keys
from imap_wal.security.encryption_keys import NO_KEYS, PLAIN, Keys
from imap_wal.segment.reader import SegmentReader
from imap_wal.segment.snapshot import is_segment
from storage_backends.extras import needs

GROUP_ROWS_MAX = 65_536
GROUP_BYTES_MAX = 32 * 1024 * 1024
"""Approximate size of a row group in bytes: the memory that a reader or writer needs for a file."""

ROWS = b"imap-wal.rows"
BY_KEY = b" by key"
"""A mark after the number of rows of an archive, in the same field: the rows are sorted by key and
then by position, not in the order of the log. With one field, no damaged bit changes only one of
the two."""
PATH = b"imap-wal.path"
LOG = b"imap-wal.log"
"""In an encrypted file: the path for which it was written, and for an archive its log."""
PLAIN_MAGIC, ENCRYPTED_MAGIC = b"PAR1", b"PARE"
DICTIONARIES = ["map", "key_class", "value_class", "node"]


def promise_of(rows: int, columns: Collection[str]) -> bytes:
    """The content of the field `ROWS`. Of the two kinds of files, only an archive has positions."""
    return b"%d" % rows + (BY_KEY if "epoch" in columns else b"")


def demand_rows(file: Any, path: str, rows: int) -> None:
    """Raises `CorruptLog` if the file names another number of rows: its order is then unknown,
    too."""
    promised = (file.metadata.metadata or {}).get(ROWS)
    if promised != promise_of(rows, file.schema.names):
        named = "no number" if promised is None else promised.decode(errors="replace")
        difference = f"this Parquet file has {rows} rows, but its metadata has {named}"
        raise CorruptLog(path, 0, difference, "restore it from a copy")


def open_parquet(source: BinaryIO, path: str, keys: Keys, log: str) -> Any:
    """An imap-wal `pyarrow.parquet.ParquetFile`, opened with its key. `log`: the log directory that
    an encrypted archive must have; "": a snapshot, or unknown. Raises `EncryptionError`, `Forged`,
    and pyarrow's errors for a damaged file."""
    return _opened(source, path, keys, log)[0]


def written_otherwise(context: Context, path: str) -> bool:
    """Whether a file of a snapshot was written without a key or with another key than the current
    one; also if it is damaged: then it is read, and its reader says so. Raises `NotFound`, and the
    errors of a missing key."""
    keys = context.keys
    if keys is NO_KEYS:
        return False
    if is_segment(path):
        return (SegmentReader(context.store, path).header.key_id or PLAIN) != keys.key_ring.active
    with context.store.open_input(path) as source:
        try:
            return _opened(source, path, keys, "")[1] != keys.key_ring.active
        except ImapWalError:
            raise  # some of them are ValueErrors
        except (OSError, ValueError):
            return True


def _opened(source: BinaryIO, path: str, keys: Keys, log: str) -> tuple[Any, str]:
    """A Parquet file, and the id of its key."""
    with needs("archive"):  # here, because a program without pyarrow has segment snapshots
        import pyarrow.parquet as pq

    options = {"read_dictionary": DICTIONARIES, "page_checksum_verification": True}
    source.seek(max(source.seek(0, os.SEEK_END) - len(PLAIN_MAGIC), 0))
    magic = source.read(len(PLAIN_MAGIC))  # at the end of the file, where every reader looks
    source.seek(0)
    if magic != ENCRYPTED_MAGIC:
        if magic == PLAIN_MAGIC:
            keys.demand_plain(path)
        return pq.ParquetFile(source, **options), PLAIN
    for name, key in archive_keys(keys).items():
        try:
            file = pq.ParquetFile(
                source,
                decryption_properties=encryption().create_decryption_properties(key),
                **options,
            )
        except OSError:  # another key, or a damaged footer: it is unknown which
            source.seek(0)
            continue
        said = file.metadata.metadata or {}
        written_as = said.get(PATH)
        if written_as != path.encode():
            shown = "" if written_as is None else written_as.decode(errors="replace")
            raise Forged(
                path,
                0,
                f"this file was written as {shown!r}: it was moved or replaced",
                "bring the right file back from a copy",
            )
        if log and said.get(LOG) != log.encode():
            shown = said.get(LOG, b"").decode(errors="replace")
            difference = (
                f"this file is of log directory {shown!r}, but this log has the directory "
                f"{log!r}: it was moved here"
            )
            raise Forged(path, 0, difference, "bring the right file back from a copy")
        return file, name
    raise EncryptionError(
        path,
        "",
        f"it is encrypted, {keys.known_ids}: its key is missing",
        keys.advice,
        is_missing=True,
    )


def encryption() -> Any:
    """pyarrow's encryption module. Raises `InvalidSetting` if this version does not accept keys."""
    try:
        import pyarrow.parquet.encryption as found

        found.create_encryption_properties  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise InvalidSetting(
            "encrypted archives need another pyarrow: pip install 'imap-wal[encryption]'"
        ) from error
    return found
