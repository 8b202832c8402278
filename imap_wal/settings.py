"""Settings of a log, as one frozen value, and checks of what users pass: locations, modes, folders,
names. This module does not read the environment; the command line and the agent do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from imap_wal.errors import InvalidSetting, not_text
from storage_backends import StorageError
from storage_backends.location import Location, located, without_secrets


class Durability(StrEnum):
    """When a change is acknowledged. `docs/durability.md` says what each value survives."""

    ALWAYS = "always"
    INTERVAL = "interval"
    OS = "os"
    ASYNC = "async"


class RecoveryMode(StrEnum):
    """What an open does with damage in its own node's log; `imap_wal.write.recovery` has the
    table."""

    ABSOLUTE = "absolute"
    TORN_TAIL = "torn-tail"
    POINT_IN_TIME = "point-in-time"


class RecoveryPolicy(StrEnum):
    """What a restore does if the log of a registered node is missing: `full` raises `MissingNode`,
    `partial` leaves its entries out."""

    FULL = "full"
    PARTIAL = "partial"


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}


FRAME_BYTES_MAX = 2**31 - 2**20 - 1
"""The largest payload of a frame: the same number as `imap_wal.format.PAYLOAD_BYTES_MAX`."""

SECONDS_MAX = 2**31
"""68 years; the limit of times in any unit. Python cannot wait for more than about 290 years."""
_AT_MOST = {"ring_slots": 2**20, "segment_bytes": 2**40}
_ADVICE = {"recovery_mode": "; `imap-wal repair` makes a salvaged copy of a damaged log"}
_MAY_BE_0 = {
    "archive_interval_s",
    "auto_rewrite_percentage",
    "max_total_wal_size",
    "rotate_interval_s",
    "wal_size_limit_mb",
    "wal_ttl_seconds",
}


def location(
    url: str | os.PathLike[str],
    name: str = "url",
    options: Mapping[str, Any] | None = None,
    file_mode: str = "",
) -> Location:
    """A folder or URL from a user, as text without its options. The result has the options of the
    URL, `options` and `file_mode` as attributes. Raises `InvalidSetting` for any other type, and
    for an empty `url`."""
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str):
        raise InvalidSetting(
            f"{name} is {without_secrets(repr(text))}; it takes text or a pathlib.Path"
        )
    if options is not None and not isinstance(options, Mapping):
        raise InvalidSetting(
            f"the options of {name} are a {type(options).__name__}; they take a table, or in "
            "Python a dict"
        )
    if not text.strip() and (text or name == "url"):
        given = f"{name} is {text!r}, which is blank" if text else f"{name} is empty"
        raise InvalidSetting(
            f'{given}; pass a folder or a URL, as in "/var/lib/maps", "~/maps", '
            '"file:///var/lib/maps" or "s3://bucket/maps"'
        )
    try:
        os.fsencode(text)  # file names that are not UTF-8 are allowed
    except UnicodeEncodeError as error:
        # from None: `error` contains the text
        raise InvalidSetting(f"{name}: {without_secrets(not_text(error))}") from None
    try:
        place = located(text, options)
        if not file_mode:
            return place
        return Location(
            place,
            place.options,
            place.wal_dir,
            mode(file_mode, "file_mode"),
            place.known,
            place.encryption_keys,
        )
    except StorageError as error:
        raise InvalidSetting(f"{name}: {error}") from None


def mode(text: Any, name: str) -> int:
    """Permissions of a file, as chmod takes them. The owner may read and write; nobody may execute.
    Raises `InvalidSetting`."""
    if not isinstance(text, str) or not re.fullmatch(r"0?6[0246]{2}", text):
        raise InvalidSetting(
            f'{name} is {text!r}; it takes the mode of a file as text, such as "0600", '
            '"0640" or "0660"'
        )
    return int(text, 8)


def existing_folder(path: Any, name: str) -> Path:
    """A local folder from a user. Raises `InvalidSetting` if it does not exist."""
    found = Path(location(path, name)).expanduser()
    if not os.fspath(path) or not found.is_dir():
        raise InvalidSetting(
            f"{name} is {os.fspath(path)!r}; there is no such folder: create it, or leave "
            f"{name} out"
        )
    return found


def check_seconds(value: Any, name: str) -> None:
    """Raises `InvalidSetting` unless this is a number of seconds from 0 to `SECONDS_MAX`."""
    if type(value) not in (int, float) or not 0 <= value <= SECONDS_MAX:
        raise InvalidSetting(
            f"{name} is {value!r}; it takes seconds, a number from 0 to {SECONDS_MAX}"
        )


KEY_SOURCES = ("file", "env", "command")


def check_source(text: str) -> None:
    """Raises `InvalidSetting` unless this names a source of keys. The error does not show the text,
    which may be a key."""
    kind, _, rest = text.partition(":")
    if text and (kind not in KEY_SOURCES or not rest.strip()):
        raise InvalidSetting(
            "encryption_keys takes where the keys come from: file:PATH, env:NAME or command:COMMAND"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Text for the error about an unknown name: the most similar known name, or all known names."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def refuse_wrong_types(settings: Any) -> None:
    """Raises `InvalidSetting` for the first field of a dataclass with a value of a wrong type."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        kinds, takes = _TYPES.get(str(field.type), ((type(value),), ""))
        if type(value) not in kinds and not (str in kinds and isinstance(value, Location)):
            raise InvalidSetting(
                f"{field.name} is {without_secrets(repr(value))}; it takes {takes}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a log is written, kept and restored. Names contain the units.

    Raises:
        InvalidSetting: a value is not valid; the text names the setting.
    """

    durability: Durability = Durability.ALWAYS
    sync_interval_ms: int = 1000
    """`interval` only: an acknowledged byte is synced within this time."""
    segment_bytes: int = 64 * 1024 * 1024
    """A segment of this size is sealed, and the next one begins."""
    preallocate: bool = True
    """Reserve a segment's space when it begins, if the storage can: a sync then does not change the
    file's size."""
    ring_slots: int = 4096
    """Batches that may wait for the committer; a power of two."""
    ring_bytes: int = 256 * 1024 * 1024
    """Bytes that may wait for the committer; a larger batch waits until the ring is empty."""
    commit_bytes_max: int = 16 * 1024 * 1024
    """A group commit takes the ready batches up to this size, at least one; less than 2 GiB."""
    max_value_bytes: int = 128 * 1024 * 1024
    """Largest size of key and value of one change together; a larger one raises `TooLarge`."""
    restore_memory_bytes: int = 1024 * 1024 * 1024
    """Memory for the index of a restore or rewrite; the rest is written to `scratch`."""
    scratch: Path | None = None
    """Folder for what does not fit in memory; None: the system's temporary folder."""
    recovery_policy: RecoveryPolicy = RecoveryPolicy.FULL
    recovery_mode: RecoveryMode = RecoveryMode.TORN_TAIL
    archive_interval_s: float = 0
    """Seal and archive at this interval; 0: only by size, or on request."""
    max_total_wal_size: int = 0
    """Bytes: archive when the segments that are not archived, including the one being written, take
    this much; 0: only by time, or on request."""
    wal_ttl_seconds: int = 0
    """Remove covered archives and segments that are older than this; 0: not by age. If
    `wal_size_limit_mb` is 0 too, only `imap-wal prune` removes files."""
    wal_size_limit_mb: int = 0
    """MiB: remove the oldest covered files while covered files take more; 0: not by size."""
    rotate_interval_s: float = 0
    """Seal a segment of this age; 0: only by size."""
    avoid_flush_during_recovery: bool = False
    """Do not archive the segments of an earlier run at the start; they wait for the next archive by
    time or size."""
    file_mode: str = "0600"
    """Permissions of the log's files on a local storage. Folders get the same, with execute
    permission for all who may read. "0640" lets the group read."""
    encryption_keys: str = ""
    """The source of the keys of an encrypted log: `file:PATH`, `env:NAME` or `command:COMMAND`.
    Empty: nothing is encrypted."""
    auto_rewrite_percentage: int = 0
    """Embedded stores only: compact the log when it has grown by this percentage of its snapshots
    since the last compaction; 0: only on request."""
    auto_rewrite_min_bytes: int = 8 * 1024 * 1024
    """The log must have grown by this much at least."""
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
            if getattr(self, name) > FRAME_BYTES_MAX:
                raise InvalidSetting(
                    f"{name} is {getattr(self, name)}; one commit takes at most "
                    f"{FRAME_BYTES_MAX} bytes, a little less than 2 GiB"
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
    wal_ttl_seconds: int
    wal_size_limit_mb: int
    rotate_interval_s: float
    avoid_flush_during_recovery: bool
    file_mode: str
    encryption_keys: str
    auto_rewrite_percentage: int
    auto_rewrite_min_bytes: int
    manual_wal_flush: bool


def _most(name: str) -> int:
    """The highest value of a number."""
    return SECONDS_MAX if name.endswith(("_s", "_ms", "_seconds")) else _AT_MOST.get(name, 2**62)


def choose(given: Mapping[str, object], others: Iterable[str] = ()) -> Settings:
    """The settings from the keyword arguments of a caller. Raises `InvalidSetting` for an unknown
    one, with the most similar name. `others`: the caller's other options."""
    known = {field.name for field in fields(Settings)}
    for name in given:
        if name not in known:
            raise InvalidSetting(
                f"there is no setting {name!r}; {nearest(name, known | {*others})}"
            )
    return Settings(**cast("dict[str, Any]", given))
