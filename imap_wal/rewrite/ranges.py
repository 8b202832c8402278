"""Decides which files of a map's former snapshot a rewrite keeps unchanged.

The files of a snapshot contain disjoint ranges of keys, in order. The manifest has the lower border
of each range, so the ranges that have no new entry are known without reading a file. Such a file is
kept, unless it has something to drop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from imap_wal.context import Context
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.parquet.file import written_otherwise
from imap_wal.rewrite.plan import Part, RewritePlan
from imap_wal.security.encryption import opened_border
from imap_wal.security.encryption_keys import Keys
from imap_wal.segment.snapshot import is_segment

BORDER_BYTES_MAX = 256
"""Longer borders are not written into the manifest: the map's next rewrite reads all its files."""
SMALL_PART = 8
"""A file smaller than this fraction of the mean size is rewritten together with an adjacent range,
so that many small rewrites do not leave many small files."""


@dataclass(frozen=True, slots=True)
class KeptPart:
    """A file that is kept. `upper`: where the next range begins; None: it is the last."""

    part: Part
    upper: bytes | None


def separator(last: bytes, first: bytes) -> bytes | None:
    """The shortest border between a file that ends with key `last` and one that begins with
    `first`. None if there is none, or none that is short enough."""
    if last >= first:
        return None
    common = next(
        (place for place, (a, b) in enumerate(zip(last, first, strict=False)) if a != b),
        min(len(last), len(first)),
    )
    return first[: common + 1] if common < BORDER_BYTES_MAX else None


def borders_of(snapshot: Snapshot, keys: Keys) -> list[bytes] | None:
    """The lower borders of the files of a snapshot, which increase. None: they are unknown, cannot
    be decrypted with the keys, or several files may have the same key."""
    if snapshot.mixed or not snapshot.files:
        return None
    try:
        lowers = [opened_border(keys, file.border) for file in snapshot.files]
    except ValueError:
        return None
    return lowers if all(a < b for a, b in pairwise(lowers)) else None


def parts_of(snapshot: Snapshot, keys: Keys) -> tuple[Part, ...]:
    """The files of a snapshot, in key order. Empty if the whole snapshot has to be read: it may
    have tombstones or claims to drop, or the manifest does not have the borders of its files."""
    lowers = borders_of(snapshot, keys)
    if lowers is None or snapshot.tombstones:
        return ()
    return tuple(
        Part(
            file.path,
            live=file.rows,
            tombstones=0,
            bytes=file.size,
            checksum=file.checksum,
            last_expiry_ms=snapshot.last_expiry_ms,
            lower=lower,
            first_expiry_ms=file.first_expiry_ms,
            is_kept=True,
        )
        for file, lower in zip(snapshot.files, lowers, strict=True)
    )


def kept_parts(
    plan: RewritePlan,
    parts: Sequence[Part],
    pages: Iterable[Iterable[bytes]],
    context: Context,
) -> tuple[KeptPart, ...]:
    """Those of `parts` (`parts_of`) that are kept. `pages`: the keys that have new entries.
    Raises `NotFound`, and the errors of `written_otherwise`."""
    if not parts:
        return ()
    lowers = [part.lower or b"" for part in parts]
    touched = [
        bool(part.first_expiry_ms) and plan.rule.expired(part.first_expiry_ms) for part in parts
    ]
    left = touched.count(False)
    for page in pages:
        if not left:
            return ()
        for key in page:
            place = bisect_right(lowers, key) - 1
            if not touched[place]:
                touched[place] = True
                left -= 1
    for place, part in enumerate(parts):
        touched[place] = (
            touched[place] or is_segment(part.path) or written_otherwise(context, part.path)
        )
    total, order = sum(part.bytes for part in parts), range(len(parts))
    for places, step in ((order, -1), (reversed(order), 1)):
        for place in places:
            is_small = parts[place].bytes * len(parts) * SMALL_PART < total
            if is_small and 0 <= place + step < len(parts) and touched[place + step]:
                touched[place] = True
    uppers = [*lowers[1:], None]
    return tuple(
        KeptPart(part, upper)
        for part, upper, is_touched in zip(parts, uppers, touched, strict=True)
        if not is_touched
    )
