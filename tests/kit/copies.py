"""A plug-in that appends each change to some of the logs of three nodes."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from imap_wal import format
from imap_wal.entry import Row, clear_of, is_clear, pack, shared_session
from imap_wal.rewrite import conflicts
from imap_wal.rewrite.prune import prune
from storage_backends import SegmentStore
from tests.histories import put
from tests.kit.logs import cluster, node, values, view
from tests.kit.rewrites import archive, members, run

NODES = ("n1", "n2", "n3")
KEYS = tuple("abcdefgh")
SESSION = shared_session("a plug-in", 1)


@dataclass
class Copying:
    """A plug-in that appends each change to some of three logs, and the dict that it should make.
    A log that lacks a change never gets it later."""

    chance: random.Random
    store: SegmentStore
    request: int = 0
    expected: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.logs = {name: node(self.store, name) for name in NODES}
        members(self.store)

    def write(self) -> None:
        self.request += 1
        order = (1, self.chance.choice((1, 1, 2)) if self.request < 3 else 2, SESSION, self.request)
        kind, key = self.chance.random(), self.chance.choice(KEYS)
        if kind < 0.03:
            row = clear_of("orders", 0, 1, 1000, order)
            self.expected.clear()
        elif kind < 0.3:
            row = put(key, None, order)
            self.expected.pop(key, None)
        else:
            row = put(key, self.request, order)
            self.expected[key] = str(self.request)
        for name in self.chance.sample(NODES, self.chance.randint(1, 3)):
            _append(self.logs[name], row)

    def maintain(self) -> None:
        kind = self.chance.random()
        if kind < 0.3:
            archive(self.store, self.logs[self.chance.choice(NODES)])
        elif kind < 0.6:
            run(self.store)
        elif kind < 0.8:
            prune(cluster(self.store))

    def check(self) -> None:
        for memory_bytes in (1 << 30, 1):
            with closing(view(self.store, restore_memory_bytes=memory_bytes)) as made:
                assert values(made) == self.expected
                assert made.statistics.conflicts == 0
        assert list(conflicts.find(cluster(self.store))) == []

    def close(self) -> None:
        for log in self.logs.values():
            log.close()


def _append(log: Any, row: Row) -> None:
    log.write(format.CLEARS if is_clear(row) else format.ENTRIES, 1, [pack(row)])
    log.sync()
