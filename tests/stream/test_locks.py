"""The table of locks: exact, and as an estimate."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from imap_wal.stream.locks import ENTRY_BYTES, LockTable
from imap_wal.stream.requests import Known, RequestWindow

LOCKS = st.binary(min_size=1, max_size=3)


@given(
    writes=st.lists(st.tuples(LOCKS, st.integers(1, 50)), max_size=200),
    bytes_max=st.sampled_from([2**30, 20_000, 500, 1]),
    asked=st.lists(LOCKS, max_size=20),
    together=st.sampled_from([0, 1, 7, 200]),
)
@example(writes=[(b"a", 1), (b"a", 2), (b"a", 1)], bytes_max=2**30, asked=[], together=7)
@example(writes=[(b"a", 1), (b"a", 2), (b"a", 1)], bytes_max=1, asked=[], together=1)
def test_an_estimate_never_names_an_older_transaction(
    writes: list[tuple[bytes, int]], bytes_max: int, asked: list[bytes], together: int
) -> None:
    """An exact table is a dict with the highest id of each lock, in any order of the writes, one by
    one or several together."""
    table, model = LockTable(bytes_max), dict[bytes, int]()
    for start in range(0, len(writes), together or 1):
        part = writes[start : start + (together or 1)]
        if together:
            table.write_all([lock for lock, _ in part], [id for _, id in part])
        else:
            table.write(*part[0])
        for lock, id in part:
            model[lock] = max(id, model.get(lock, 0))
    for lock in {*model, *asked}:
        if table.is_exact:
            assert table.newest(lock) == model.get(lock, 0)
        else:
            assert model.get(lock, 0) <= table.newest(lock) <= max(model.values())
    assert table.is_exact == (2 * sum(len(lock) + ENTRY_BYTES for lock in model) <= bytes_max)


def test_an_estimate_takes_the_memory_of_its_setting() -> None:
    """With as many locks as it has slots, most unknown locks are still known to be unwritten."""
    table = LockTable(2**20)
    for number in range(2**16):
        table.write(b"%d" % number, number)
    assert not table.is_exact and table.memory_bytes < 2**20
    free = sum(table.newest(b"another %d" % number) == 0 for number in range(1000))
    assert free > 20
    few = LockTable(2**20)
    for number in range(2**12):
        few.write(b"%d" % number, number)
    assert not few.is_exact
    assert sum(few.newest(b"another %d" % number) == 0 for number in range(1000)) > 950


def test_the_oldest_requests_are_forgotten_first() -> None:
    window = RequestWindow(requests_max=10)
    for number in range(1, 1001):
        window.note(f"request {number % 50}", Known(number, 99))
        for back in range(min(number, 10)):
            assert window.get(f"request {(number - back) % 50}", 0) == number - back
        assert len(window) <= 20
    assert window.get("request 0", 98) and not window.get("request 0", 99)
