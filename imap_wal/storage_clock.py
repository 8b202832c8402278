"""Compares this machine's clock with the storage's. Expiry depends on a clock, so before a machine
permanently drops expired entries, it measures the difference between the clocks."""

from __future__ import annotations

from imap_wal.clock import Clock, Randomness
from imap_wal.errors import InvalidSetting
from storage_backends import SegmentStore

SKEW_MS_MAX = 300_000
"""A rewrite is refused if the clocks differ by more; expired entries are kept this much longer."""
PROBE_MS_MAX = 3_600_000
"""A probe file that is older than this was left by a process that died."""


def storage_now(store: SegmentStore, cluster_folder: str, randomness: Randomness) -> int:
    """Unix time in milliseconds by the storage's clock; 0 if the storage has no modification times.
    Creates an empty file and deletes it."""
    folder = f"{cluster_folder}/clock"
    path = f"{folder}/{randomness.name()}"
    store.create(path, b"")
    try:
        times = {file.path: file.modified_ms for file in store.list(folder)}
    finally:
        store.delete(path)
    now_ms = times.get(path, 0)
    for left, modified_ms in times.items():
        if 0 < modified_ms < now_ms - PROBE_MS_MAX:
            store.delete(left)
    return now_ms


def clock_skew(
    store: SegmentStore, cluster_folder: str, clock: Clock, randomness: Randomness
) -> int | None:
    """The milliseconds by which this machine's clock is ahead of the storage's; negative: it is
    slow. None: the storage has no modification times."""
    before = clock.now_ms()
    stored = storage_now(store, cluster_folder, randomness)
    after = clock.now_ms()
    if not stored:
        return None
    return before - min(stored, before) if stored <= after else after - stored


def demand_clock(
    store: SegmentStore,
    cluster_folder: str,
    clock: Clock,
    randomness: Randomness,
    skew_ms_max: int = SKEW_MS_MAX,
) -> int | None:
    """`clock_skew`. Raises `InvalidSetting` if it exceeds `skew_ms_max`."""
    skew_ms = clock_skew(store, cluster_folder, clock, randomness)
    if skew_ms is not None and abs(skew_ms) > skew_ms_max:
        way = "ahead of" if skew_ms > 0 else "behind"
        raise InvalidSetting(
            f"this machine's clock is {abs(skew_ms) / 1000:,.0f} s {way} the clock of {store.url}, "
            f"more than {skew_ms_max / 1000:,.0f} s: entries with a time to live would "
            "expire too early or too late. Correct the clock of this machine (or of the storage), "
            "or allow the difference with --max-clock-skew; nothing was changed"
        )
    return skew_ms
