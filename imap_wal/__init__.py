"""imap-wal: a write-ahead log for Hazelcast's IMap, and durable maps in one process on the same
log.

`open` and `aopen`: durable maps in this process. `connect` and `aconnect`: in one of several
processes. `memoize`: results of a function in a map. `log`: append, read and follow a log without
maps. `scan`: a map as a table of Arrow. `imap_wal.adapters`: maps behind the interfaces of other
libraries. `imap_wal.agent`: the service beside a Hazelcast member. ARCHITECTURE.md describes the
modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from imap_wal.version import VERSION

if TYPE_CHECKING:
    from imap_wal import errors, log
    from imap_wal.adapters.memoize import memoize
    from imap_wal.embedded.asyncio_map import AsyncMap
    from imap_wal.embedded.asyncio_store import AsyncStore, aopen
    from imap_wal.embedded.durable_map import DELETE, DurableMap
    from imap_wal.embedded.job_queue import AsyncJobQueue, Job, JobQueue
    from imap_wal.embedded.opening import open
    from imap_wal.embedded.store import Store
    from imap_wal.embedded.transaction import Batch, Transaction
    from imap_wal.embedded.wal_filter import STOP, WalFilter
    from imap_wal.embedded.watch import AsyncWatch, Event, Watch
    from imap_wal.entry import DataEntry
    from imap_wal.errors import (
        Closed,
        CorruptLog,
        Fenced,
        ImapWalError,
        InvalidSetting,
        LogExists,
        LostRace,
        MissingLibrary,
        MissingNode,
        NoSuchLog,
        NotAppended,
        NotReadable,
        NotSerializable,
        OutcomeUnknown,
        PositionGone,
        ReadOnly,
        ShortLog,
        StorageUnavailable,
        TooLarge,
        UnsupportedVersion,
        WriterLocked,
    )
    from imap_wal.serializer import (
        MsgpackSerializer,
        PickleSerializer,
        RawSerializer,
        Serializer,
        key_bytes,
    )
    from imap_wal.settings import Durability, RecoveryMode, RecoveryPolicy, Settings
    from imap_wal.table import MapTable, scan
    from imap_wal.typed import Codec, NumpyCodec, TypedSerializer
    from imap_wal.workers.asyncio_store import AsyncConnectedMap, AsyncConnectedStore, aconnect
    from imap_wal.workers.store import connect

__version__ = VERSION

__all__ = [
    "DELETE",
    "STOP",
    "AsyncConnectedMap",
    "AsyncConnectedStore",
    "AsyncJobQueue",
    "AsyncMap",
    "AsyncStore",
    "AsyncWatch",
    "Batch",
    "Closed",
    "Codec",
    "CorruptLog",
    "DataEntry",
    "Durability",
    "DurableMap",
    "Event",
    "Fenced",
    "ImapWalError",
    "InvalidSetting",
    "Job",
    "JobQueue",
    "LogExists",
    "LostRace",
    "MapTable",
    "MissingLibrary",
    "MissingNode",
    "MsgpackSerializer",
    "NoSuchLog",
    "NotAppended",
    "NotReadable",
    "NotSerializable",
    "NumpyCodec",
    "OutcomeUnknown",
    "PickleSerializer",
    "PositionGone",
    "RawSerializer",
    "ReadOnly",
    "RecoveryMode",
    "RecoveryPolicy",
    "Serializer",
    "Settings",
    "ShortLog",
    "StorageUnavailable",
    "Store",
    "TooLarge",
    "Transaction",
    "TypedSerializer",
    "UnsupportedVersion",
    "WalFilter",
    "Watch",
    "WriterLocked",
    "aconnect",
    "aopen",
    "connect",
    "errors",
    "key_bytes",
    "log",
    "memoize",
    "open",
    "scan",
]

# A module is imported when one of its names is used: a program that opens a map needs no asyncio,
# and a command, an agent or a Spark task needs no map.
_NAMES = {
    "adapters.memoize": "memoize",
    "embedded.asyncio_map": "AsyncMap",
    "embedded.asyncio_store": "AsyncStore aopen",
    "embedded.durable_map": "DELETE DurableMap",
    "embedded.job_queue": "AsyncJobQueue Job JobQueue",
    "embedded.opening": "open",
    "embedded.store": "Store",
    "embedded.transaction": "Batch Transaction",
    "embedded.wal_filter": "STOP WalFilter",
    "embedded.watch": "AsyncWatch Event Watch",
    "entry": "DataEntry",
    "errors": (
        "Closed CorruptLog Fenced ImapWalError InvalidSetting LogExists LostRace "
        "MissingLibrary MissingNode NoSuchLog NotAppended NotReadable NotSerializable "
        "OutcomeUnknown PositionGone ReadOnly ShortLog StorageUnavailable TooLarge "
        "UnsupportedVersion WriterLocked"
    ),
    "serializer": "MsgpackSerializer PickleSerializer RawSerializer Serializer key_bytes",
    "settings": "Durability RecoveryMode RecoveryPolicy Settings",
    "table": "MapTable scan",
    "typed": "Codec NumpyCodec TypedSerializer",
    "workers.asyncio_store": "AsyncConnectedMap AsyncConnectedStore aconnect",
    "workers.store": "connect",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in ("errors", "log"):
            return import_module(f"imap_wal.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'imap_wal' has no attribute {name!r}")
        value = getattr(import_module(f"imap_wal.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
