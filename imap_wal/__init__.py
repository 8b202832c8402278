"""imap-wal: maps that do not forget. A write-ahead log for Hazelcast's IMap, and the same log as a durable map in one process.

Write path                                                   Restore path

  DurableMap / AsyncMap      agent.server ◀─ plug-in           snapshots   archives   segments   of every node
        │ Change                  │ one message                     └─────────┬──────────┘
        ▼                         ▼                                  restore.ClusterLog      marks, cuts, damage
     store.Store ─────▶ ring.RingBuffer of Batch                              ▼
                                  ▼                                  index.NewestIndex       newest of every key
                        committer.Committer   one frame, one sync             ▼
                                  ▼                                  restore.LiveView ──▶ Store, agent, CLI, Spark
                        writer.NodeLog        epoch, rotation, fence
                                  ▼
                        segment.SegmentWriter bytes as format draws them
                                  ▼
                        storage_backends      sync, exclusive create

What lives where, bottom up: `errors`, `clock`, `settings` · `entry` (DataEntry, order), `format` (bytes), `layout` (names) · `segment` · `manifest`
(compare-and-swap) · `writer`, `ring`, `committer` · `index`, `restore`, `archive` · `serializer`, `store`, `aio` · `agent`.
"""

from imap_wal import errors
from imap_wal.aio import AsyncMap, AsyncStore, aopen
from imap_wal.errors import (
    Closed,
    CorruptLog,
    Fenced,
    ImapWalError,
    InvalidSetting,
    LostRace,
    MissingNode,
    NotAppended,
    NotSerializable,
    OrderConflict,
    OutcomeUnknown,
    ShortLog,
    StorageUnavailable,
    TooLarge,
    UnsupportedVersion,
    WriterLocked,
)
from imap_wal.serializer import MsgpackSerializer, RawSerializer, Serializer
from imap_wal.settings import Durability, RecoveryPolicy, Settings
from imap_wal.store import DurableMap, Store, open

__version__ = "0.1.0"

__all__ = [
    "AsyncMap",
    "AsyncStore",
    "Closed",
    "CorruptLog",
    "Durability",
    "DurableMap",
    "Fenced",
    "ImapWalError",
    "InvalidSetting",
    "LostRace",
    "MissingNode",
    "MsgpackSerializer",
    "NotAppended",
    "NotSerializable",
    "OrderConflict",
    "OutcomeUnknown",
    "RawSerializer",
    "RecoveryPolicy",
    "Serializer",
    "Settings",
    "ShortLog",
    "Store",
    "StorageUnavailable",
    "TooLarge",
    "UnsupportedVersion",
    "WriterLocked",
    "aopen",
    "errors",
    "open",
]
