"""imap-wal: a write-ahead log for Hazelcast's IMap, and durable maps in one process on the same
log.

`open` and `aopen`: durable maps in this process. `connect` and `aconnect`: in one of several
processes. `memoize`: results of a function in a map. `log`: append, read and follow a log without
maps. `scan`: a map as a table of Arrow. `imap_wal.adapters`: maps behind the interfaces of other
libraries. `imap_wal.agent`: the service beside a Hazelcast member. ARCHITECTURE.md describes the
modules.
"""

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
from imap_wal.version import VERSION
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
