"""Processes that share a store, and an older copy of its folder: a process gets an error if and
only if the copy lacks a change that was acknowledged to it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from imap_wal.errors import Fenced, ImapWalError, OutcomeUnknown
from imap_wal.workers import requests
from imap_wal.workers.client import Client
from imap_wal.workers.requests import FORGOTTEN
from tests.support import FakeClock, Threads, eventually

Stores = Callable[..., Any]
DAY_S = 24 * 3600


def copied(log: Path) -> Callable[[], None]:
    """Copies the log. The returned function puts the copy in its place."""
    copy, former = log.with_name("copy"), log.with_name("former")
    shutil.copytree(log, copy)

    def put_in_place() -> None:
        log.rename(former)
        copy.rename(log)

    return put_in_place


def disconnect(store: Any) -> None:
    """Its next operations connect again."""
    for line in store._client._free:
        line.close()


def demand_refused(store: Any, m: Any) -> None:
    """The first change may be in the log: perhaps the former server has got it."""
    with pytest.raises((OutcomeUnknown, Fenced), match="replaced by an older copy"):
        m["c"] = 3
    for call in (lambda: m.get("a"), lambda: m.put("d", 4), store.maps):
        with pytest.raises(Fenced, match="restore the former folder"):
            call()


@pytest.mark.parametrize("folder", ["log", "/".join(["x" * 250] * 5)], ids=["short", "long"])
def test_a_log_that_lost_acknowledged_changes_is_noticed(
    stores: Stores, tmp_path: Path, folder: str
) -> None:
    """All continued without the changes since the copy. The answer to a hello has the URL."""
    store = stores(folder)
    m = store.map("m")
    m["a"] = 1
    put_in_place = copied(tmp_path / folder)
    m["b"] = 2
    put_in_place()
    demand_refused(store, m)
    assert dict(stores(folder).map("m").items()) == {"a": 1}


def test_a_change_of_another_connection_is_demanded_too(stores: Stores, tmp_path: Path) -> None:
    """Two threads have a connection each. The copy has all changes of the second one."""
    store = stores()
    m, free = store.map("m"), store._client._free
    first = free.pop()  # in use by the first thread
    m["a"] = 1
    put_in_place = copied(tmp_path / "log")
    free.append(first)
    m["b"] = 2
    free.reverse()  # the second thread is free last
    put_in_place()
    demand_refused(store, m)


def test_the_order_of_answers_is_not_that_of_changes(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is between two changes, and the answer of the first one is read last."""
    served, store = stores(), stores()
    m, late = store.map("m"), threading.Event()
    answer = Client._answer

    def read(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            late.wait()
        return answer(*arguments)

    monkeypatch.setattr(Client, "_answer", read)
    first = Threads(lambda: m.put("a", 1))
    eventually(lambda: "a" in served.map("m"), "the first change is in the log")
    put_in_place = copied(tmp_path / "log")
    m["b"] = 2
    late.set()
    first.join()
    put_in_place()
    demand_refused(store, m)


@pytest.mark.parametrize(
    ("former", "now", "noticed"), [("async", "always", False), ("always", "async", True)]
)
def test_what_counts_is_the_durability_of_the_acknowledgement(
    stores: Stores, tmp_path: Path, former: str, now: str, noticed: bool
) -> None:
    """Not that of the process that serves next. With `async`, a kill loses changes: that is no
    copy."""
    served, store = stores(durability=former), stores(durability=now)
    m = store.map("m")
    m["a"] = 1
    store.sync()
    put_in_place = copied(tmp_path / "log")
    m["b"] = 2
    put_in_place()
    with suppress(ImapWalError):
        served.close()
    if noticed:
        demand_refused(store, m)
        return
    m["c"] = 3
    assert dict(m.items()) == {"a": 1, "c": 3} and store.is_serving


def test_a_clock_that_jumps_is_no_older_copy(stores: Stores) -> None:
    """A day ahead and back. The log had removed the records of requests meanwhile."""
    clock = FakeClock()
    first, store = stores(clock=clock), stores(clock=clock)
    m = store.map("m")
    m["a"] = 1
    clock.advance(2 * DAY_S)
    assert stores().map("m")["a"] == 1
    first.close()
    m["b"] = 2  # another process serves
    clock.advance(-2 * DAY_S)
    disconnect(store)
    m["c"] = 3
    assert dict(m.items()) == {"a": 1, "b": 2, "c": 3}


def test_records_of_requests_are_bounded(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are removed. Their clients continue, and still notice an older copy."""
    monkeypatch.setattr(requests, "RECORDS_MAX", 6)
    served, store = stores(), stores()
    m = store.map("m")
    m["a"] = 1
    for number in range(20):
        stores().map("m")[number] = number
    records = served._serving.server.served._requests._state
    assert len(records.values) <= 8 and FORGOTTEN in records.values
    disconnect(store)
    put_in_place = copied(tmp_path / "log")
    m["b"] = 2
    put_in_place()
    demand_refused(store, m)


def test_close_removes_the_record_of_its_requests(stores: Stores, tmp_path: Path) -> None:
    """Not of another process, which still notices an older copy."""
    served, store = stores(), stores()
    m = store.map("m")
    m["a"] = 1
    records = served._serving.server.served._requests._state
    with stores() as other:
        other.map("m")["b"] = 1
        [line] = other._client._free
        assert line.client in records.values
    eventually(lambda: line.client not in records.values, "its record is removed")
    disconnect(store)
    put_in_place = copied(tmp_path / "log")
    m["b"] = 2
    put_in_place()
    for number in range(5):  # at later places than the last change of `store`
        with stores() as other:
            other.map("m")[number] = number
    demand_refused(store, m)
