"""Histories in which several nodes claim one change."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st

from imap_wal.context import Context
from imap_wal.embedded.wal_filter import filtered
from imap_wal.entry import EXPIRES_AT_MS, KEY, ORDER, VALUE
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.newest.rivals import RivalClaims
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite import conflicts
from imap_wal.rules.newer import Claim
from imap_wal.settings import RecoveryPolicy, Settings
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore, forget
from tests.histories import put
from tests.kit.logs import append, node, view

NODES = ("n1", "n2", "n3")


KEYS = ("a", "b", "")


SPILLED = Settings(preallocate=False, restore_memory_bytes=1)


names = itertools.count(1)


changes = st.tuples(
    st.sampled_from(NODES),
    st.sampled_from(KEYS),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from((None, "x", "y")),
    st.sampled_from((0, 0, 0, 5)),
)
"""(node, key, partition version, session, request, value, expiry)."""


def as_rows(history: list[tuple[str, str, int, int, int, str | None, int]]) -> list[Claim]:
    """Each order once in a node's log, as a node assigns it."""
    found: dict[tuple[str, str, int, int, int], Claim] = {}
    for writer, key, version, session, request, value, expires in history:
        row = put(key, value, (1, version, session, request), expires_at_ms=expires if value else 0)
        found.setdefault((writer, key, version, session, request), (row, writer))
    return list(found.values())


def expected(claims: list[Claim]) -> tuple[dict[bytes, Claim], dict[bytes, frozenset[Claim]]]:
    """By definition: the winner of each key, and the claims of each key in conflict."""
    winners, rivals = {}, {}
    for key in {row[KEY] for row, _ in claims}:
        of_key = [claim for claim in claims if claim[0][1] == key]
        top = max(row[ORDER][:2] for row, _ in of_key)
        contenders = [
            max(
                (claim for claim in of_key if claim[1] == writer and claim[0][9][:2] == top),
                key=lambda claim: claim[0][9],
            )
            for writer in {writer for row, writer in of_key if row[ORDER][:2] == top}
        ]
        winners[key] = min(contenders, key=lambda claim: (claim[0][3] is None, claim[1]))
        if len({(row[VALUE], row[EXPIRES_AT_MS]) for row, _ in contenders}) > 1:
            rivals[key] = frozenset(contenders)
    return winners, rivals


def reported(found: list[RivalClaims]) -> dict[bytes, frozenset[Claim]]:
    assert len({each.key for each in found}) == len(found), "each key once"
    return {each.key: frozenset(each.claims) for each in found}


def check_readers(
    log: ClusterLog, winners: dict[bytes, Claim], rivals: dict[bytes, frozenset[Claim]]
) -> None:
    """Every reader of a log, on this machine."""
    living = {
        key: row
        for key, (row, _) in winners.items()
        if row[VALUE] is not None and not row[EXPIRES_AT_MS]
    }
    limited: dict[str, Any] = {"restore_memory_bytes": 1}
    for memory in ({}, limited):
        made = view(log.store, **memory)
        assert {row[KEY]: row for rows in made.rows("orders") for row in rows} == living
        assert {row[KEY]: row for row in made.load("orders", sorted(winners))} == living
        assert {key for keys in made.keys("orders") for key in keys} == living.keys()
        assert made.statistics.conflicts == len(rivals)
        made.close()
    passed = filtered(log, lambda entry: entry, RecoveryPolicy.FULL).get("orders", {})
    assert {key: tuple(entry) for key, entry in passed.items() if key in living} == living
    assert reported(list(conflicts.find(log))) == rivals
    assert len(conflicts.found(log)) == len(rivals)


@contextmanager
def logs(claims: list[Claim], order: random.Random) -> Iterator[SegmentStore]:
    """The logs of three nodes, each in any order."""
    name = f"rivals-{next(names)}"
    store = MemoryStore(name)
    try:
        for writer in NODES:
            log = node(store, writer)
            mine = [row for row, of in claims if of == writer]
            order.shuffle(mine)
            if mine:
                append(log, *mine, frames=2 if len(mine) > 1 else 1)
            log.rotate()
            if order.random() < 0.3:
                archive_sealed(
                    Context(store),
                    log.identity.node_folder,
                    writer,
                    log.manifests,
                    writing=log.unsealed,
                )
            log.close()
        yield store
    finally:
        forget(name)
