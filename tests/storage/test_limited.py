"""A store with a limited bandwidth behaves like the store that it wraps, and waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_backends import metered
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.metered import LimitedStore, Rate
from storage_backends.testing import check_segment_store
from tests.kit.effort import every


class Time:
    """A clock that only a sleep moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_so_many_bytes_take_so_long() -> None:
    time = Time()
    rate = Rate(1000, lambda: time.now, time.sleep)
    for _ in range(50):
        rate.spend(100)
    assert time.now == pytest.approx(5)


def test_time_without_reads_is_not_saved_up() -> None:
    time = Time()
    rate = Rate(1000, lambda: time.now, time.sleep)
    time.now = 100
    for _ in range(50):
        rate.spend(100)
    assert time.now == pytest.approx(105 - metered.BURST_S)


@every(2)
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_it_is_a_segment_store(kind: str, tmp_path: Path, memory: MemoryStore) -> None:
    inner = memory if kind == "memory" else LocalStore(str(tmp_path))
    check_segment_store(LimitedStore(inner, 2**40))


def test_files_that_are_read_and_written_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    monkeypatch.setattr(Rate, "spend", lambda self, count: spent.append(count))
    store = LimitedStore(LocalStore(str(tmp_path / "log")), 1)
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3000)
    store.create("a", b"x" * 1000)
    store.create_from("b", str(source))
    assert len(store.read("a")) == 1000
    with store.open_input("b") as file:
        assert len(file.read()) == 3000
        file.seek(2990)
        assert file.read(100) == b"x" * 10
    assert sum(spent[:3]) == 5000 and sum(spent[3:]) >= 3000
