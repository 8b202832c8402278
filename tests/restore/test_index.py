"""The index of a merge: newest of every key, and no more memory than it was given."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from imap_wal.entry import Row
from imap_wal.errors import OrderConflict
from imap_wal.index import NewestIndex
from tests.histories import put


def rows_of(random_: random.Random, count: int) -> list[tuple[str, Row]]:
    """Changes of few keys by two nodes; each partition version belongs to one of them."""
    found = []
    for request in range(count):
        version = random_.randrange(1, 50)
        value = None if random_.random() < 0.2 else random_.randbytes(random_.randrange(40)).hex()
        name = random_.choice(("a", "b"))
        key = "" if random_.random() < 0.02 else f"k{random_.randrange(200)}"
        found.append(("n1" if version % 2 else "n2", put(key, value, (1, version, 1, request), name)))
    return found


@pytest.mark.parametrize("memory_bytes", [1 << 30, 100_000, 1])
def test_it_equals_a_dict_whether_or_not_memory_suffices(memory_bytes: int, seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    history = rows_of(random_, 3000)
    index = NewestIndex(memory_bytes, tmp_path)
    expected: dict[tuple[str, bytes], tuple[str, Row]] = {}
    while history:
        size = random_.randrange(1, 200)
        batch, history = history[:size], history[size:]
        for node in ("n1", "n2"):
            index.add(node, [row for of, row in batch if of == node])
        for node, row in batch:
            known = expected.get((row[0], row[1]))
            if known is None or known[1][9] < row[9]:
                expected[row[0], row[1]] = (node, row)
    assert index.overflowed == (memory_bytes < 1 << 30)
    assert index.maps() == ["a", "b"]
    for name in ("a", "b"):
        mine = {key: found for (of, key), found in expected.items() if of == name}
        assert index.count(name) == len(mine)
        for rows_max in (1, 7, 10_000):
            found = [item for rows, nodes in index.batches_with_nodes(name, rows_max, ordered=True) for item in zip(nodes, rows, strict=True)]
            assert found == [mine[key] for key in sorted(mine)]
        keys = [*mine, b"absent"]
        random_.shuffle(keys)
        assert index.get(name, keys) == [mine[key][1] if key in mine else None for key in keys]
    index.remove("a")
    assert index.maps() == ["b"] and index.count("a") == 0
    index.close()
    assert list(tmp_path.iterdir()) == []


def test_memory_stays_within_its_bound(tmp_path: Path) -> None:
    index = NewestIndex(20_000_000, tmp_path)
    tracemalloc.start()
    try:
        for start in range(0, 60_000, 1000):
            index.add("n1", [put(f"key-{number}", "v" * 1000, (1, 1, 1, number)) for number in range(start, start + 1000)])
        assert tracemalloc.get_traced_memory()[1] < 26_000_000
    finally:
        tracemalloc.stop()
    assert index.overflowed and index.count("orders") == 60_000
    index.close()


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1])
def test_a_conflict_is_one_only_while_nothing_is_newer(memory_bytes: int, tmp_path: Path) -> None:
    for arriving in ([("n1", 1), ("n2", 1), ("n3", 2)], [("n3", 2), ("n1", 1), ("n2", 1)], [("n1", 1), ("n3", 2), ("n2", 1)]):
        index = NewestIndex(memory_bytes, tmp_path)
        for request, (node, version) in enumerate(arriving):
            index.add(node, [put("k", node, (1, version, 1, request))])
        assert [row[3] for rows in index.batches("orders") for row in rows] == [b"n3"]
        index.add("n4", [put("k", "n4", (1, 2, 1, 0))])
        with pytest.raises(OrderConflict, match=r"'n3' and 'n4'|'n4' and 'n3'"):
            index.get("orders", [b"k"])
        index.close()
