"""A function of the user that is called with every entry while a store is opened, before the entry
is applied. It can keep, skip or change the entry, or stop there.

    snapshots ─▶ each node's log in its order (archives, segments) ─▶ wal_filter
              ─▶ newest of each key ─▶ memory

The storage is not changed: the next open sees the same entries again, unless the log was rewritten
meanwhile. This is RocksDB's `WalFilter`, with its four answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from enum import Enum
from typing import Final, TypeAlias

from imap_wal.entry import ORDER, DataEntry, is_clear
from imap_wal.errors import InvalidSetting
from imap_wal.format import PAYLOAD_BYTES_MAX, START
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import LogReader
from imap_wal.read.newest.rivals import Noted
from imap_wal.read.newest.table import Table
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.rules.cleared import Cleared
from imap_wal.rules.valid import demand_valid
from imap_wal.settings import RecoveryPolicy


class Stop(Enum):
    """What a filter can return besides an entry and None."""

    STOP = "stop"


STOP: Final = Stop.STOP

WalFilter: TypeAlias = Callable[[DataEntry], "DataEntry | Stop | None"]
"""Return the entry itself to keep it, another DataEntry to replace it (the order is kept), or None
to skip it. STOP leaves out this entry and all that follow. The `clear` of a map is one entry, whose
key is None: it can only be kept or skipped."""


def filtered(
    log: ClusterLog, wal_filter: WalFilter, policy: RecoveryPolicy
) -> dict[str, dict[bytes, DataEntry]]:
    """The newest entry that passed, by map and key; tombstones too. This takes as much memory as
    the maps themselves. Raises `InvalidSetting` if the filter returns anything but an entry, None
    or STOP."""
    newest: dict[str, Table] = {}
    cleared = Cleared()
    for node, entry in _entries(log, policy):
        answer = wal_filter(entry)
        if answer is None:
            continue
        if answer is STOP:
            break
        if not isinstance(answer, DataEntry):
            raise InvalidSetting(
                f"wal_filter returned {answer!r}; it must return the entry, another DataEntry, "
                "None or STOP"
            )
        if is_clear(answer) is not is_clear(entry):
            raise InvalidSetting(
                "wal_filter changed whether an entry has a key; the entry that clears a map "
                "has none, and can only be kept or skipped"
            )
        answer = answer._replace(order=entry.order, deleted=answer.value is None)
        if answer != entry:
            _demand_valid(answer)
        if is_clear(answer):
            cleared.take(node, [answer])
            continue
        newest.setdefault(answer.map, Table()).offer(answer.key, (*answer, node))
    noted = Noted()
    for name, table in newest.items():
        keys = list(table.rows)
        for index in cleared.hidden(name, keys, [table.rows[key][ORDER] for key in keys]):
            del table.rows[keys[index]]
            table.rivals.pop(keys[index], None)
        noted.note(
            conflict for key in table.rivals if (conflict := table.conflict(name, key)) is not None
        )
    return {
        name: {key: DataEntry(*table.claim(row)[0]) for key, row in table.rows.items()}
        for name, table in newest.items()
    }


def _demand_valid(answer: DataEntry) -> None:
    try:
        demand_valid(answer, PAYLOAD_BYTES_MAX)
    except ValueError as error:
        raise InvalidSetting(f"wal_filter returned an entry that is not valid: {error}") from error


def _entries(log: ClusterLog, policy: RecoveryPolicy) -> Iterator[tuple[str, DataEntry]]:
    state = log.state().demand(policy)
    for scan in cluster_scans(state, nodes=(), snapshots=True):
        for changes in read_scan(log.context, scan):
            yield from ((changes.node, DataEntry(*row)) for row in changes.rows)
    for node in sorted(state.nodes):
        covered = state.covered(node)
        reader = LogReader.of(log, node, partial=node in state.parts)
        with closing(reader):
            for position, entry in reader.read():
                if position > covered.get(entry.map, START):
                    yield node, entry
