"""The rules for rows and those for columns agree (`imap_wal.rules`), and nothing else compares
orders."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    ORDER,
    ORDER_FIELDS,
    SHARED_SESSIONS,
    Order,
    Row,
    clear_of,
    is_clear,
)
from imap_wal.format import Position
from imap_wal.parquet.columns import to_batch, to_positions, to_rows
from imap_wal.read.file_scan import ARCHIVE, FileScan
from imap_wal.rewrite.columns.newest_keys import KEY_SCHEMA
from imap_wal.rules.alive import are_alive, is_alive
from imap_wal.rules.cleared import Cleared
from imap_wal.rules.counts import counting_columns, counting_rows, is_uniform, may_count
from imap_wal.rules.decided import Decisions
from imap_wal.rules.dropped import TombstonePolicy, are_droppable, may_be_dropped
from imap_wal.rules.newer import Claim, Contest, contenders, content_of, winner_first
from tests.kit.effort import share

NAME, COUNT = "m", 2
NODES = ("n2", "n1", "n3")
KEYS = tuple(bytes((0, 0, 0, 2 + number)) + b"data" for number in range(3))
"""Each begins with its partition hash."""
SHARED = SHARED_SESSIONS + 7
NOW = 5
ROOT = Path(__file__).parents[2]
ALLOWED = {
    "imap_wal/read/newest/index.py": "changes of one writer, for each row of a restore",
    "rewrite_cli/commands/copies/restore.py": "the highest incarnation of all changes",
}
"""The other modules that compare orders, and what for."""

places = st.none() | st.integers(-1, 6).map(lambda frame: Position(1, 1, max(frame, 0), 0))
changes = st.tuples(
    st.permutations(NODES),
    st.sampled_from((*KEYS, *KEYS, None)),
    st.tuples(
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from((1, 2, SHARED, SHARED)),
        st.integers(1, 3),
    ),
    st.sampled_from(("upsert", "tombstone", *range(NOW - 1, NOW + 2))),
)
limits = st.fixed_dictionaries(
    {
        "since": places,
        "until": places,
        "covered": places.map(lambda place: {} if place is None else {NAME: place}),
        "cuts": st.lists(st.tuples(st.integers(1, 3), places.filter(bool)), max_size=2).map(tuple),
        "overtaken": st.dictionaries(
            st.integers(0, 1), st.tuples(st.integers(1, 2), st.integers(1, 2))
        ).map(lambda pairs: {NAME: pairs} if pairs else {}),
    }
)
policies = st.builds(
    TombstonePolicy,
    now_ms=st.just(NOW),
    complete=st.sampled_from((True, True, True, False)),
    open_nodes=st.sampled_from((*[frozenset[str]()] * 3, frozenset({"n1"}), frozenset(NODES))),
    skew_ms_max=st.integers(0, 1),
    current=st.integers(1, 3),
)

CONTEST: Contest[Claim] = Contest(
    lambda claim: claim[0][ORDER],
    lambda claim: claim[1],
    lambda claim: claim[0][DELETED],
    lambda claim: content_of(claim[0]),
)


def as_claims(history: list[tuple[list[str], bytes | None, Order, Any]]) -> list[Claim]:
    """A writer gives each of its changes another order. One with a shared session is in the logs of
    two nodes."""
    made: dict[object, Row] = {}
    claims = []
    for nodes, key, order, kind in history:
        shared = order[2] == SHARED
        writer = order if shared else (order, nodes[0])
        if writer not in made:
            partition = 0 if key is None else key[3] % COUNT
            expires = kind if isinstance(kind, int) else 0
            value = None if kind == "tombstone" else b"%d of %s" % (order[3], nodes[0].encode())
            made[writer] = (
                clear_of(NAME, partition, COUNT, 1, order)
                if key is None
                else (NAME, key, "", value, "", value is None, 1, expires, partition, order)
            )
        claims += [(made[writer], node) for node in nodes[: 2 if shared else 1]]
    return claims


def counted(
    claims: list[Claim], of_files: dict[str, dict[str, Any]], decisions: Decisions
) -> list[Claim]:
    """The claims that count, of an archive of each node, in both ways."""
    found: list[Claim] = []
    for node in NODES:
        rows = [row for row, owner in claims if owner == node]
        if not rows:
            continue
        positions = [Position(1, 1, number, 0) for number in range(len(rows))]
        first, last = positions[0], positions[-1]
        scan = FileScan(ARCHIVE, node, "a", NAME, first=first, last=last, **of_files[node])
        if not may_count(scan, NAME, first, last):
            assert counting_rows(scan, rows, positions, last, alike=False) == ([], [])
            continue
        alike = is_uniform(scan, NAME, first, last)
        some, left = counting_rows(scan, rows, positions, last, alike=alike)
        assert (some, left) == counting_rows(scan, rows, positions, last, alike=False)
        batch = counting_columns(scan, to_batch(rows, node, positions), NAME, first, last)
        assert to_rows(batch) == some and to_positions(batch) == left
        droppable = are_droppable(batch).to_pylist()
        assert droppable == [may_be_dropped(row) for row in some]
        some = decisions.counting(node, some)
        assert to_rows(decisions.counting_columns(batch, NAME, node)) == some
        assert to_rows(decisions.counting_columns(batch, NAME)) == some
        found += [(row, node) for row in some]
    return found


def by_rows(
    claims: list[Claim], cleared: Cleared, late: set[bytes], policy: TombstonePolicy
) -> list[tuple[Any, ...]]:
    newest: dict[bytes, Claim] = {}
    rivals: dict[bytes, list[Claim]] = {}
    hidden = cleared.hidden(
        NAME, [row[KEY] for row, _ in claims], [row[ORDER] for row, _ in claims]
    )
    for index, claim in enumerate(claims):
        if index not in hidden:
            CONTEST.offer(newest, rivals, claim[0][KEY], claim)
    return [
        (
            key,
            node,
            row[ORDER],
            key in rivals,
            policy.drops(row, node, key in late),
            is_alive(row, NOW),
        )
        for key in sorted(newest)
        for row, node in (newest[key], *rivals.get(key, ()))
    ]


def by_columns(
    claims: list[Claim], cleared: Cleared, late: set[bytes], policy: TombstonePolicy
) -> list[tuple[Any, ...]]:
    table = pa.Table.from_pylist(
        [
            {
                "key": row[KEY],
                **dict(zip(ORDER_FIELDS, row[ORDER], strict=True)),
                "node": NODES.index(node),
                "deleted": row[DELETED],
                "expires_at_ms": row[EXPIRES_AT_MS],
                "late": row[KEY] in late,
                "source": 0,
                "row": number,
            }
            for number, (row, node) in enumerate(claims)
        ],
        KEY_SCHEMA,
    )
    table, claimed = winner_first(cleared.without(contenders(table, NODES), NAME), NODES)
    orders = zip(*(table[field].to_pylist() for field in ORDER_FIELDS), strict=True)
    return list(
        zip(
            table["key"].to_pylist(),
            [NODES[number] for number in table["node"].to_pylist()],
            orders,
            claimed.to_pylist(),
            policy.drop_columns(table, NODES).to_pylist(),
            are_alive(table, NOW).to_pylist(),
            strict=True,
        )
    )


@settings(deadline=None, max_examples=share(600, ci=12))
@given(
    st.lists(changes, max_size=12),
    st.fixed_dictionaries(dict.fromkeys(NODES, limits)),
    st.sets(st.sampled_from(KEYS)),
    policies,
    st.dictionaries(
        st.tuples(st.just(NAME), st.sampled_from(KEYS)),
        st.tuples(st.tuples(st.integers(1, 2), st.integers(1, 2)), st.sampled_from(NODES)),
        max_size=2,
    ).map(Decisions),
)
def test_rows_and_columns_agree_over_random_histories(
    history: list[tuple[list[str], bytes | None, Order, Any]],
    of_files: dict[str, dict[str, Any]],
    late: set[bytes],
    policy: TombstonePolicy,
    decisions: Decisions,
) -> None:
    claims, cleared = counted(as_claims(history), of_files, decisions), Cleared()
    for row, node in claims:
        cleared.take(node, [row])
    left = [claim for claim in claims if not is_clear(claim[0])]
    if left:
        assert by_columns(left, cleared, late, policy) == by_rows(left, cleared, late, policy)
        assert by_rows(left[::-1], cleared, late, policy) == by_rows(left, cleared, late, policy)


def compared_orders(source: str) -> list[str]:
    """The expressions of a source that compare orders of changes, or columns of them."""
    if "[ORDER]" not in source and not any(field in source for field in ORDER_FIELDS):
        return []  # parsing takes longer than all the rest
    found = []
    for node in ast.walk(ast.parse(source)):
        text = ast.unparse(node) if isinstance(node, ast.Compare | ast.Call) else ""
        name = text.partition("(")[0].rpartition(".")[2]
        of_rows = "[ORDER]" in text and (
            name in ("max", "min")
            if isinstance(node, ast.Call)
            else isinstance(node, ast.Compare)
            and any(isinstance(each, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for each in node.ops)
        )
        of_columns = name in ("less", "less_equal", "greater", "greater_equal") and any(
            f"'{field}'" in text for field in ORDER_FIELDS
        )
        if of_rows or of_columns:
            found.append(text)
    return found


def test_orders_are_compared_by_the_rules_alone() -> None:
    found = {
        name: texts
        for package in ("imap_wal", "pyspark_imap_wal", "rewrite_cli")
        for path in (ROOT / package).rglob("*.py")
        if not (name := str(path.relative_to(ROOT))).startswith("imap_wal/rules/")
        and (texts := compared_orders(path.read_text()))
    }
    assert found.keys() == ALLOWED.keys(), found


def test_each_comparison_of_orders_is_found() -> None:
    source = "a[ORDER] < b\nmax(x, row[ORDER])\npc.less(batch['session'], 7)\na[ORDER] == b\n"
    assert len(compared_orders(source)) == 3
