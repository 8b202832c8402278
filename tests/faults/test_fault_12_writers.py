"""Faults 12, 13: a writer that was replaced and continues; rewriters, restores, archivers and
prunes at the same time."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

import imap_wal
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE
from imap_wal.errors import LostRace
from imap_wal.read.view import MaterializedView
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends import NotFound
from storage_backends.faults import Fault, FaultyStore, Operation
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore, forget
from tests.faults import killed_processes
from tests.faults.workload import Life, Reference, live
from tests.kit.effort import brief, every, step, stride, thorough
from tests.kit.faults import Cases, _context
from tests.support import Threads, contents, embedded, eventually

_names = itertools.count()


# ---- 12: the old writer ----


def replace_a_stopped_writer(url: str, seed: int) -> None:
    """SIGSTOP at a random moment, takeover by this process, SIGCONT."""
    chance = Random(seed)
    ours, theirs = _context.Pipe(duplex=False)
    child = _context.Process(target=killed_processes.write_until_refused, args=(url, theirs))
    child.start()
    theirs.close()
    acknowledged, begun = set(), 0
    reports: list[tuple[str, int]] = []
    reports += [ours.recv() for _ in range(chance.randrange(1, 60))]
    time.sleep(chance.random() / 500)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    eventually(
        lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T",
        "the child is stopped",
    )
    with imap_wal.open(url, node="n", takeover=True, segment_bytes=4096) as store:
        m = store.map("m")
        seen = dict(m.items())
        m["new0"] = 0
        if chance.random() < 0.5:
            store.archive()  # then the names that the old one was to write do not exist
        os.kill(child.pid, signal.SIGCONT)
        for number in range(1, 20):  # while the old one tries to continue
            m[f"new{number}"] = number
        with suppress(EOFError):
            while True:
                reports.append(ours.recv())
        child.join(30)
        assert child.exitcode == 0
        assert reports[-1] == ("end", 0)
        if chance.random() < 0.5:
            store.archive()
        m["new20"] = 20
        after = dict(m.items())
    for what, number in reports:
        if what == "ack":
            acknowledged.add(f"old{number}")
        elif what == "begin":
            begun = number
    assert acknowledged <= set(seen), (
        f"seed {seed}: acknowledged, and not seen by the takeover: "
        f"{sorted(acknowledged - set(seen))}"
    )
    assert set(seen) <= {f"old{number}" for number in range(1, begun + 1)}
    assert len(seen) <= len(acknowledged) + 1
    expected = {**seen, **{f"new{number}": number for number in range(21)}}
    assert after == expected, f"seed {seed}"
    with imap_wal.open(url, node="n") as again:
        assert dict(again.map("m").items()) == expected, (
            f"seed {seed}: late bytes of the old writer came in"
        )
    refused = [what for what, number in reports if number <= 0 and what != "end"]
    assert "ack" not in refused and "archived" not in refused, f"seed {seed}: {reports[-8:]}"


def test_a_replaced_and_resumed_writer_acknowledges_nothing(
    tmp_path: Path, cases: Cases, seed: int
) -> None:
    """It is stopped and replaced by another process. It damages nothing.
    Fault 12."""
    for more in range(12):
        replace_a_stopped_writer(f"file://{tmp_path}/log{more}", seed + more)
        cases(1)


@thorough
def test_a_resumed_writer_on_objects_acknowledges_nothing(
    tmp_path: Path, cases: Cases, seed: int
) -> None:
    """It is stopped and replaced. Every commit is an object. It damages nothing.
    Fault 12, on a storage that has exclusive create and nothing else."""
    for more in range(12):
        replace_a_stopped_writer(f"objects+file://{tmp_path}/log{more}", seed + more)
        cases(1)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_many_replaced_and_resumed_writers_acknowledge_nothing(
    tmp_path: Path, cases: Cases, seed: int
) -> None:
    """They are stopped first. They damage nothing.
    Fault 12, long."""
    for more in range(brief(500)):
        for scheme in ("file", "objects+file"):
            replace_a_stopped_writer(f"{scheme}://{tmp_path}/{scheme}{more}", seed + more)
            cases(1)


class Interrupted(FaultyStore):
    """Before its `at`-th operation another action runs, once."""

    def __init__(
        self, inner: MemoryStore, at: int = 0, what: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(inner)
        self._at, self._what = at, what

    def _ask(self, kind: str, path: str) -> tuple[Fault | None, Operation]:
        answer = super()._ask(kind, path)
        if self.count == self._at:
            self._what()
        return answer


def unchecked(life: Life, why: object = "") -> imap_wal.Store:
    life.store = embedded(life.storage, **life.options)
    return life.store


STEPS = (
    ("put", "a", 1),
    ("rotate",),
    ("put", "b", 1),
    ("archive",),
    ("delete", "a"),
    ("put", "c", 1),
    ("rotate",),
    ("update", {"d": 1, "e": 1}),
    ("archive",),
    ("put", "f", 1),
)


def replaced_before(at: int) -> bool:
    """The takeover is before the `at`-th operation of the old writer."""
    inner = MemoryStore(f"writers-{next(_names)}")
    old, new = Reference(), Reference()
    successor = Life(inner, new, takeover=True)

    def take_over() -> None:
        new.state, new.pending = dict(old.state), old.pending
        successor.open(f"takeover before operation {at}")
        successor.play((("put", "successor", 1), ("delete", "b")))

    life = Life(Interrupted(inner, at, take_over), old)
    life.open = functools.partial(unchecked, life)  # type: ignore[method-assign]  # replaced while it opens, it may see what its successor wrote
    try:
        life.open()
        for step in STEPS:
            before = old.acknowledged
            replaced = successor.store is not None
            life.step(*step)
            assert not replaced or old.acknowledged == before, (
                f"operation {at}: {step} was acknowledged after the takeover"
            )
    except imap_wal.ImapWalError:
        pass
    if successor.store is None:
        return False
    new.settle(dict(successor.store.map("m").items()), f"operation {at}")
    with suppress(imap_wal.ImapWalError):
        life.close()
    successor.options["takeover"] = False
    successor.play(
        (("put", "again", 1), ("rotate",), ("archive",), ("rewrite",), ("prune",), ("reopen",))
    )
    assert contents(inner, clock=new.clock) == live(new.state, new.clock.now_ms()), (
        f"operation {at}"
    )
    successor.close()
    forget(inner.url.removeprefix("memory://"))
    return True


def operations_of_an_open() -> int:
    counted = Interrupted(MemoryStore(f"writers-{next(_names)}"))
    Life(counted, Reference()).open().close()
    inner = Interrupted(counted.inner)  # type: ignore[arg-type]
    Life(inner, Reference()).open()
    return inner.count


def test_a_writer_replaced_before_any_operation_acknowledges_nothing(
    cases: Cases,
) -> None:
    """It damages nothing.
    Fault 12, by the wrapper."""
    at = operations_of_an_open() + 1
    while replaced_before(at):
        cases(1)
        at += min(step(), 7)
    assert at > 50


def test_a_late_writer_never_fences_its_successor_silently(
    cases: Cases,
) -> None:
    """It is replaced after it takes the lock and before it reads the manifest.
    Fault 12: it reads the manifest of its successor and continues from there; the successor must
    then be fenced, or it acknowledges changes in a file that was replaced."""
    for at in range(2, operations_of_an_open() + 1, min(step(), 3)):
        inner = MemoryStore(f"writers-{next(_names)}")
        with embedded(inner) as store:
            store.map("m")["a"] = 0
        acknowledged = {"a": 0}
        successors: list[imap_wal.Store] = []

        def take_over(
            inner: MemoryStore = inner,
            successors: list[imap_wal.Store] = successors,
            acknowledged: dict[str, int] = acknowledged,
        ) -> None:
            store = embedded(inner, takeover=True)
            successors.append(store)
            store.map("m")["first"] = acknowledged["first"] = 1

        with suppress(imap_wal.ImapWalError):
            embedded(Interrupted(inner, at, take_over))
        with suppress(imap_wal.ImapWalError):
            successors[0].map("m")["second"] = 2
            acknowledged["second"] = 2
        assert contents(inner) == acknowledged, f"operation {at}: an acknowledged change is lost"
        forget(inner.url.removeprefix("memory://"))
        cases(1)


# ---- 13: at the same time ----

PREPARED = (
    ("put", "a", 1),
    ("put", "b", 1),
    ("rotate",),
    ("delete", "a"),
    ("update", {"b": 2, "c": 1}),
    ("archive",),
    ("put", "c", 2),
    ("rotate",),
    ("rewrite",),
    ("put", "a", 3),
    ("delete", "b"),
    ("rotate",),
    ("put", "d", 1),
)
FIRST = ("rewrite", "prune", "archive", "restore")
SECOND = ("rewrite", "prune", "rewrite and prune", "archive", "changes")
PAIRS = [
    (first, second) for first in FIRST for second in SECOND if not first == second == "archive"
]
"""What is under way, and what happens in the middle of it. Only the owner archives, and one at a
time."""


def prepared() -> tuple[MemoryStore, Life]:
    inner = MemoryStore(f"writers-{next(_names)}")
    life = Life(inner, Reference())
    life.play(PREPARED)
    return inner, life


def at_once(first: str, second: str, at: int) -> bool:
    """`second` before the `at`-th operation of `first`; False: it has fewer operations."""
    inner, life = prepared()
    done = []

    def other() -> None:
        done.append(second)
        if second == "changes":
            life.play((("put", "b", 7), ("delete", "c"), ("rotate",), ("put", "e", 1)))
        else:
            for kind in second.split(" and "):
                with suppress(LostRace, NotFound):
                    life.step(kind)

    storage = Interrupted(inner, at, other)
    beside = Life(storage, life.reference)
    beside.store = life.store
    why = f"{second} before operation {at} of {first}"
    if first == "restore":
        begun = dict(live(life.reference.state, life.reference.clock.now_ms()))
        view = MaterializedView(beside.cluster(), Settings())
        view.catch_up()
        found = {
            msgpack.unpackb(row[KEY]): msgpack.unpackb(row[VALUE])
            for rows in view.rows("m")
            for row in rows
        }
        view.close()
        now = live(life.reference.state, life.reference.clock.now_ms())
        for key in {*begun, *now, *found}:
            assert found.get(key) in (begun.get(key), now.get(key)), f"{why}: {key}"
    elif first == "archive":
        assert life.store is not None
        log = life.store.committer.log
        archive_sealed(
            Context(storage), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
        )
    else:
        with suppress(LostRace, NotFound):  # reported, without damage: it is run again
            beside.step(first)
    assert contents(inner, clock=life.reference.clock) == live(
        life.reference.state, life.reference.clock.now_ms()
    ), why
    life.play(
        (("put", "z", 1), ("delete", "d"), ("archive",), ("rewrite",), ("prune",), ("reopen",))
    )
    life.close()
    forget(inner.url.removeprefix("memory://"))
    return bool(done)


@every(9)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_interleaved_maintenance_loses_nothing(
    cases: Cases, first: str, second: str, seed: int
) -> None:
    """In the middle of a rewrite, a prune, an archive or a restore.
    Fault 13: at every fourth operation; at every one in the long form."""
    at = 1 + seed % 4
    while at_once(first, second, at):
        cases(1)
        at += 4


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_maintenance_interleaved_anywhere_loses_nothing(
    cases: Cases, first: str, second: str
) -> None:
    """Before any operation of a rewrite, a prune, an archive or a restore.
    Fault 13, long."""
    at = 1
    while at_once(first, second, at):
        cases(1)
        at += stride()
    assert at > 5


def all_at_once(url: str, seconds: float, cases: Cases) -> None:
    """A writer, two rewriters that also prune, an archiver and a restore, in threads; numbers of a
    key only rise."""
    root = url.removeprefix("file://")
    acknowledged: dict[str, int] = {}
    begun: dict[str, int] = {}
    end = time.monotonic() + seconds
    store = imap_wal.open(url, node="n1", segment_bytes=4096)
    m = store.map("m")
    restored: list[int] = []

    def write() -> None:
        number = 0
        while time.monotonic() < end:
            number += 1
            key = f"k{number % 17}"
            begun[key] = number
            m[key] = number
            acknowledged[key] = number

    def shrink() -> None:
        life = Life(LocalStore(root), Reference())
        while time.monotonic() < end:
            with suppress(LostRace):
                rewrite(life.cluster(), LocalEngine(Settings(preallocate=False)), skew_ms_max=2**60)
                prune(life.cluster())
                cases(1)

    def archive() -> None:
        while time.monotonic() < end:
            store.archive()
            time.sleep(0.01)

    def restore() -> None:
        while time.monotonic() < end or not restored:
            before = dict(acknowledged)
            view = MaterializedView(Life(LocalStore(root), Reference()).cluster(), Settings())
            try:
                view.catch_up()
            except NotFound:  # files vanished in eight passes: reported, and begun again
                view.close()
                continue
            restored.append(1)
            found = {
                msgpack.unpackb(row[KEY]): msgpack.unpackb(row[VALUE])
                for rows in view.rows("m")
                for row in rows
            }
            view.close()
            for key, number in before.items():
                assert number <= found.get(key, 0) <= begun[key], (
                    f"{key}: acknowledged {number}, restored {found.get(key)}"
                )

    Threads(write, shrink, shrink, archive, restore).join(seconds + 60)
    store.close()
    with imap_wal.open(url, node="n1") as again:
        found: dict[str, Any] = dict(again.map("m").items())
    assert found == acknowledged


def test_concurrent_threads_on_one_log_lose_nothing(url: str, cases: Cases) -> None:
    """A writer, two rewriters, prunes, an archiver and restores.
    Fault 13."""
    all_at_once(url, 3, cases)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_minutes_of_concurrent_threads_lose_nothing(url: str, cases: Cases) -> None:
    """A writer, two rewriters, prunes, an archiver and restores.
    Fault 13, long."""
    all_at_once(url, brief(120), cases)
