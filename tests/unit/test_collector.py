"""How often Python's garbage collector runs while a store is opened."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from imap_wal.collector import THRESHOLDS, collecting_rarely


@pytest.fixture(autouse=True)
def same_afterwards() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_collector_of_a_program_is_as_before_afterwards() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(KeyError), collecting_rarely():
        assert gc.get_threshold()[:2] == THRESHOLDS[:2]
        raise KeyError
    assert gc.get_threshold()[:2] == (700, 10)


def test_the_last_of_several_blocks_restores_it() -> None:
    gc.set_threshold(700, 10, 10)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collecting_rarely():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with collecting_rarely():
        thread.start()
        assert entered.wait(10)
    assert gc.get_threshold()[:2] == THRESHOLDS[:2]
    leave.set()
    thread.join()
    assert gc.get_threshold()[:2] == (700, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (200_000, 10, 10)])
def test_nothing_changes_in_a_program_that_collects_more_rarely(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with collecting_rarely():
        assert gc.get_threshold()[:2] == own[:2]
    assert gc.get_threshold()[:2] == own[:2]


def test_a_change_by_the_program_meanwhile_is_kept() -> None:
    gc.set_threshold(700, 10, 10)
    with collecting_rarely():
        gc.set_threshold(5000, 5, 5)
    assert gc.get_threshold()[:2] == (5000, 5)
