"""Settings of a log, as one frozen value. This module does not read the environment; the command
line and the agent do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from imap_wal.checks import (
    SECONDS_MAX,
    check_source,
    existing_folder,
    mode,
    nearest,
    refuse_wrong_types,
)
from imap_wal.errors import InvalidSetting
from imap_wal.format import PAYLOAD_BYTES_MAX


class Durability(StrEnum):
    """When a change is acknowledged. `docs/durability.md` has the failures that each value
    survives."""

    ALWAYS = "always"
    """After the sync."""
    INTERVAL = "interval"
    """After the write; the sync follows within `sync_interval_ms`."""
    OS = "os"
    """After the write; the operating system decides when it is on disk."""
    ASYNC = "async"
    """When the change is in the ring, before it is written."""


class RecoveryMode(StrEnum):
    """What an open does with damage in its own node's log. These are three of RocksDB's modes
    (`WALRecoveryMode`); docs/durability.md has the table of all kinds of damage."""

    ABSOLUTE = "absolute"
    """Refuses any damage, including an incomplete last commit."""
    TORN_TAIL = "torn-tail"
    """Cuts off damage above the last synced position, and refuses any other."""
    POINT_IN_TIME = "point-in-time"
    """Continues with the entries before the first damage, and puts the later ones aside."""


class RecoveryPolicy(StrEnum):
    """What a restore does if the log of a registered node is missing: `full` raises `MissingNode`,
    `partial` leaves its entries out."""

    FULL = "full"
    PARTIAL = "partial"


_AT_MOST = {"ring_slots": 2**20, "segment_bytes": 2**40}
_ADVICE = {"recovery_mode": "; `imap-wal repair` makes a salvaged copy of a damaged log"}
_MAY_BE_0 = {
    "archive_interval_s",
    "archive_objects",
    "auto_rewrite_bytes_per_second",
    "auto_rewrite_close_s",
    "auto_rewrite_percentage",
    "history_s",
    "max_total_wal_size",
    "rotate_interval_s",
    "wal_size_limit_mb",
    "wal_ttl_seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a log is written, kept and restored. Names contain the units. Some settings have
    RocksDB's names and meanings; docs/settings.md lists them. `auto_rewrite_percentage` and
    `auto_rewrite_min_bytes` are Redis' `auto-aof-rewrite-percentage` and
    `auto-aof-rewrite-min-size`.

    Raises:
        InvalidSetting: a value is not valid; the text names the setting.
    """

    durability: Durability = Durability.ALWAYS
    sync_interval_ms: int = 1000
    """`interval` only: an acknowledged byte is synced within this time."""
    segment_bytes: int = 64 * 1024 * 1024
    """A segment that reaches this size is sealed, and the next one begins."""
    preallocate: bool = True
    """Reserve a segment's space when it begins, if the storage can: a sync then does not change the
    file's size."""
    ring_slots: int = 4096
    """Commit requests that may wait for the committer; a power of two."""
    ring_bytes: int = 256 * 1024 * 1024
    """Bytes that may wait for the committer; a larger request waits until the ring is empty."""
    commit_bytes_max: int = 16 * 1024 * 1024
    """A group commit takes the ready requests up to this size, at least one; less than 2 GiB."""
    max_value_bytes: int = 128 * 1024 * 1024
    """Largest size of key and value of one change together; a larger one raises `TooLarge`."""
    restore_memory_bytes: int = 1024 * 1024 * 1024
    """Memory for the index of a restore or rewrite; what exceeds it is written to `scratch`."""
    scratch: Path | None = None
    """Folder for data that does not fit in memory; None: the system's temporary folder."""
    recovery_policy: RecoveryPolicy = RecoveryPolicy.FULL
    recovery_mode: RecoveryMode = RecoveryMode.TORN_TAIL
    archive_interval_s: float = 0
    """Seal and archive at this interval; 0: not by time."""
    max_total_wal_size: int = 0
    """Bytes: archive once unarchived segments, including the one being written, reach this size; 0:
    not by size."""
    archive_objects: int = 1000
    """Where each commit is an object: archive once this many are not archived, if they have at most
    8 KiB on average, because a restore requests each of them; 0: not by number."""
    wal_ttl_seconds: int = 0
    """Remove covered archives and segments that are older than this; 0: not by age. If
    `wal_size_limit_mb` is 0 too, only a compaction or `imap-wal prune` removes files."""
    wal_size_limit_mb: int = 0
    """MiB: remove the oldest covered files while covered files take more than this; 0: not by
    size."""
    rotate_interval_s: float = 0
    """Seal a segment when it reaches this age; 0: only by size."""
    avoid_flush_during_recovery: bool = False
    """Do not archive the segments of an earlier run when the log is opened; they wait for the next
    archive by time or size."""
    file_mode: str = "0600"
    """Permissions of the log's files on a local storage. Folders get the same, with execute
    permission for all who may read. "0640" lets the group read."""
    encryption_keys: str = ""
    """The source of the keys of an encrypted log: `file:PATH`, `env:NAME` or `command:COMMAND`.
    Empty: nothing is encrypted."""
    auto_rewrite_percentage: int = 100
    """Compact the log when it has grown by this percentage of its snapshots since the last
    compaction; 0: only on request. After a compaction, `get --history`, `--as-of` and similar reads
    no longer find the replaced changes, except those of `history_s`."""
    auto_rewrite_min_bytes: int = 8 * 1024 * 1024
    """For `auto_rewrite_percentage`: the log must have grown by at least this size."""
    auto_rewrite_bytes_per_second: int = 128 * 1024 * 1024
    """An automatic compaction reads and writes at most this much per second; 0: no limit."""
    auto_rewrite_close_s: float = 5
    """Embedded stores only: a close may take this many seconds more for a compaction that runs or
    is due; 0: the next open does it."""
    history_s: int = 0
    """Compactions keep what is needed to read each moment of the last so many seconds again
    (`--as-of`); 0: nothing more."""
    manual_wal_flush: bool = False
    """Embedded stores only: changes are in memory at once and wait there until `flush_wal`, `sync`
    or `close`, or until the ring is full; a crash loses the waiting changes."""

    def __post_init__(self) -> None:
        refuse_wrong_types(self)
        for name, kind in (
            ("durability", Durability),
            ("recovery_policy", RecoveryPolicy),
            ("recovery_mode", RecoveryMode),
        ):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except ValueError:
                raise InvalidSetting(
                    f"{name} is {getattr(self, name)!r}; it takes one of "
                    f"{', '.join(kind)}{_ADVICE.get(name, '')}"
                ) from None
        mode(self.file_mode, "file_mode")
        check_source(self.encryption_keys)
        if self.scratch is not None:
            object.__setattr__(self, "scratch", existing_folder(self.scratch, "scratch"))
        if self.ring_slots < 2 or self.ring_slots & (self.ring_slots - 1):
            raise InvalidSetting(
                f"ring_slots is {self.ring_slots}; it takes a power of two, 2 or more"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                least, most = 0 if field.name in _MAY_BE_0 else 1, _most(field.name)
                if not least <= value <= most:  # also true for nan
                    takes = (
                        f"{least} or more" if value < least else f"a number from {least} to {most}"
                    )
                    raise InvalidSetting(f"{field.name} is {value}; it takes {takes}")
        for name in ("max_value_bytes", "commit_bytes_max"):
            if getattr(self, name) > PAYLOAD_BYTES_MAX:
                raise InvalidSetting(
                    f"{name} is {getattr(self, name)}; one commit takes at most "
                    f"{PAYLOAD_BYTES_MAX} bytes, a little less than 2 GiB"
                )

    @property
    def acknowledges_early(self) -> bool:
        """Whether a change is acknowledged and visible in memory before it is in the log."""
        return self.durability is Durability.ASYNC or self.manual_wal_flush


class SettingsOptions(TypedDict, total=False):
    """The fields of `Settings` as keyword arguments of a function. Enums may be given as text."""

    durability: Durability | Literal["always", "interval", "os", "async"]
    sync_interval_ms: int
    segment_bytes: int
    preallocate: bool
    ring_slots: int
    ring_bytes: int
    commit_bytes_max: int
    max_value_bytes: int
    restore_memory_bytes: int
    scratch: str | os.PathLike[str] | None
    recovery_policy: RecoveryPolicy | Literal["full", "partial"]
    recovery_mode: RecoveryMode | Literal["absolute", "torn-tail", "point-in-time"]
    archive_interval_s: float
    max_total_wal_size: int
    archive_objects: int
    wal_ttl_seconds: int
    wal_size_limit_mb: int
    rotate_interval_s: float
    avoid_flush_during_recovery: bool
    file_mode: str
    encryption_keys: str
    auto_rewrite_percentage: int
    auto_rewrite_min_bytes: int
    auto_rewrite_bytes_per_second: int
    auto_rewrite_close_s: float
    history_s: int
    manual_wal_flush: bool


def _most(name: str) -> int:
    """The highest value of a numeric setting."""
    return SECONDS_MAX if name.endswith(("_s", "_ms", "_seconds")) else _AT_MOST.get(name, 2**62)


def choose(arguments: Mapping[str, object], others: Iterable[str] = ()) -> Settings:
    """The settings from the keyword arguments of a caller. Raises `InvalidSetting` for an unknown
    one, with the most similar name. `others`: the caller's other options."""
    names = {field.name for field in fields(Settings)}
    for name in arguments:
        if name not in names:
            raise InvalidSetting(
                f"there is no setting {name!r}; {nearest(name, names | {*others})}"
            )
    return Settings(**cast("dict[str, Any]", arguments))
