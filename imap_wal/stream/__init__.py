"""A log as the source of truth. Authors append transactions with locks; a transaction is refused if
its author has not seen what it depends on. Consumers apply the transactions to databases, maps or
anything else, which are only views of the log.

    submit     function(view) ─▶ Transaction with locks ─▶ checked against newer ones ─▶ log
    consume    log ─▶ function(record) with the mark of the record, in one commit of the view

`transaction` has what is stored, `locks` and `requests` the tables in memory, `partition` the
check, `consumer` and `marks` the views, `progress` how far they are, `served` a stream of several
processes, `stream` and `opening` what a program calls.
"""

from typing import TYPE_CHECKING

from imap_wal.stream.asyncio_stream import AsyncStream, aconnect, aopen
from imap_wal.stream.consumer import ConsumerStatus, Retries
from imap_wal.stream.marks import FileMarks, MapMarks, Marks, StreamView
from imap_wal.stream.opening import open
from imap_wal.stream.progress import ConsumerProgress, StreamProgress
from imap_wal.stream.served import connect
from imap_wal.stream.stream import Stream
from imap_wal.stream.transaction import Mark, StreamRecord, Transaction
from imap_wal.workers.network import Certificates

if TYPE_CHECKING:
    from imap_wal.stream.sql_marks import SqlMarks

__all__ = [
    "AsyncStream",
    "Certificates",
    "ConsumerProgress",
    "ConsumerStatus",
    "FileMarks",
    "MapMarks",
    "Mark",
    "Marks",
    "StreamProgress",
    "StreamRecord",
    "Retries",
    "SqlMarks",
    "Stream",
    "Transaction",
    "StreamView",
    "aconnect",
    "aopen",
    "connect",
    "open",
]


def __getattr__(name: str) -> object:
    if name == "SqlMarks":  # SQLAlchemy is loaded by a program that uses it
        from imap_wal.stream.sql_marks import SqlMarks

        return SqlMarks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
