"""A log without maps: append entries, read them in order from any position, follow them while they
are written.

    create      publish the node's first manifest, with kind "log" (compare-and-swap) ─▶ open
    open        lock, recover the tail, next epoch: the previous writer is fenced
    append      number, encode, publish (one lock: ring order is request order) ─▶ committer
                ─▶ acknowledge, wake tailing readers ─▶ Position
    read, tail  `imap_wal.read.log_reader`, also from other processes: `LogReader`

The log has no maximum size. Its metadata is the node's manifest. Its data is the segments, found by
listing, and the archives, named by the manifest.

Embedded maps and agents write the same kind of log. So a `LogReader` reads their logs, and every
tool for their logs works on this one. `Log` appends only to logs that `create` made: a map in
memory would not see entries that another program appends to its log.

`opening` has create and open, `open_log` the rest.
"""

from imap_wal.format import START, Position
from imap_wal.log.open_log import Change, Log
from imap_wal.log.opening import create, open
from imap_wal.read.log_reader import LogReader, Record

__all__ = ["START", "Change", "Log", "LogReader", "Position", "Record", "create", "open"]
