"""Random histories beside a backup: what is restored is a state of the log between the beginning
and the end of the backup."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import imap_wal
from imap_wal.backup import catalogue
from imap_wal.backup.capture import capture
from imap_wal.backup.restore import restore_backup
from imap_wal.backup.run import back_up
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.embedded.store import Store
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends import SegmentStore, StorageError, StoredFile, open_store
from tests.kit.effort import every, first

State = dict[str, dict[str, Any]]
KEYS, MAPS = [f"k{number}" for number in range(8)], ("a", "b")


class Busy:
    """A storage on which something happens before every call that reads, and within a listing: its
    folders are read one after the other, in any order."""

    def __init__(
        self, inner: SegmentStore, happen: Callable[[], None], chance: random.Random
    ) -> None:
        self._inner, self._happen, self._chance = inner, happen, chance

    def list(self, folder: str) -> list[StoredFile]:
        self._happen()
        within = self._inner.folders(folder)
        self._chance.shuffle(within)
        found = [file for each in within for file in self.list(f"{folder}/{each}")]
        found += [
            file for file in self._inner.list(folder) if file.path.rpartition("/")[0] == folder
        ]
        return sorted(found, key=lambda file: file.path)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("read", "size"):
            return found

        def called(*arguments: Any) -> Any:
            self._happen()
            return found(*arguments)

        return called


class Stopped(StorageError):
    """The process of a backup ended here."""


class Broken:
    """A storage on which the process ends at its n-th write or deletion."""

    def __init__(self, inner: SegmentStore, at: int) -> None:
        self._inner, self.left = inner, at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("create", "replace", "delete"):
            return found

        def called(*arguments: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Stopped("the process ended", "")
            return found(*arguments)

        return called


class History:
    """Writes, archives, rewrites and prunes of one node, in a random order."""

    def __init__(self, url: str, node: str, chance: random.Random) -> None:
        self._url, self._node, self.chance = url, node, chance
        self.states: list[State] = [{name: {} for name in MAPS}]
        self.store = self._open()
        self.busy = 0.0
        """How probable it is that something happens."""

    def _open(self) -> Store:
        return imap_wal.open(self._url, node=self._node, segment_bytes=3000, preallocate=False)

    @property
    def state(self) -> State:
        return self.states[-1]

    def happen(self) -> None:
        if self.chance.random() < self.busy:
            self.step()

    def step(self) -> None:
        chance = self.chance
        kind = chance.choices(
            ["put", "delete", "update", "clear", "archive", "rewrite", "prune", "reopen"],
            [30, 10, 10, 2, 5, 2, 2, 2],
        )[0]
        name = chance.choice(MAPS)
        if kind in ("put", "delete", "update", "clear"):
            self._write(kind, name)
        elif kind == "archive":
            self.store.archive()
        elif kind == "reopen":
            self.store.close()
            self.store = self._open()
        else:
            store = open_store(self._url)
            log = ClusterLog(Context(store), "default", "embedded")
            if kind == "rewrite":
                rewrite(log, LocalEngine(Settings()), maps=chance.choice([None, (name,)]))
            else:
                prune(log)
            store.close()

    def _write(self, kind: str, name: str) -> None:
        chance = self.chance
        changed = dict(self.state[name])
        written = self.store.map(name)
        if kind == "put":
            key, value = chance.choice(KEYS), len(self.states)
            written[key] = changed[key] = value
        elif kind == "update":
            several = {key: len(self.states) for key in chance.sample(KEYS, 3)}
            written.update(several)
            changed.update(several)
        elif kind == "clear":
            written.clear()
            changed.clear()
        elif changed:
            key = chance.choice(sorted(changed))
            del written[key], changed[key]
        self.states.append({**self.state, name: changed})


def restored(target: SegmentStore, number: int, url: str, node: str) -> State:
    place = open_store(url)
    restore_backup(target, catalogue.read(target, number), place)
    place.close()
    with imap_wal.open(url, node=node) as store:
        return {name: dict(store.map(name).items()) for name in MAPS}


def run(history: History, url: str, target: Any, *, keep: int = 0) -> int:
    store = Busy(open_store(url), history.happen, history.chance)
    log = ClusterLog(Context(store), "default", "embedded")
    made = back_up([log], target, clock=SystemClock(), holder="test", keep=keep)
    return made.backup.number


@every(3)
@pytest.mark.parametrize("scheme", ["file", "objects+file"])
@pytest.mark.parametrize("seed", first(range(5), 2))
def test_a_backup_is_a_state_of_its_time(tmp_path: Path, seed: int, scheme: str) -> None:
    chance = random.Random(seed)
    url = f"{scheme}://{tmp_path}/log"
    history = History(url, "n1", chance)
    target = open_store(f"file://{tmp_path}/backups")
    for turn in range(3):
        for _ in range(chance.randrange(60)):
            history.step()
        begun = len(history.states) - 1
        history.busy = chance.choice([0.02, 0.1])
        number = run(history, url, target)
        history.busy = 0.0
        found = restored(target, number, f"{scheme}://{tmp_path}/again-{turn}", "n1")
        assert found in history.states[begun:]
    history.store.close()


@every(2)
@pytest.mark.parametrize("seed", first(range(6), 2))
def test_a_stopped_backup_is_completed_by_the_next(tmp_path: Path, seed: int) -> None:
    """Every backup that is visible can be restored, at each moment."""
    chance = random.Random(seed)
    url = f"file://{tmp_path}/log"
    history = History(url, "n1", chance)
    inner = open_store(f"file://{tmp_path}/backups")
    wanted: dict[int, State] = {}
    for turn in range(8):
        for _ in range(chance.randrange(20)):
            history.step()
        broken = Broken(inner, chance.randrange(25))
        try:
            run(history, url, broken, keep=2)
        except Stopped:
            pass
        for number in catalogue.numbers(inner):
            wanted.setdefault(number, history.state)
            at = f"file://{tmp_path}/again-{turn}-{number}"
            assert restored(inner, number, at, "n1") == wanted[number]
    last = run(history, url, inner, keep=2)
    assert restored(inner, last, f"file://{tmp_path}/last", "n1") == history.state
    assert len(catalogue.numbers(inner)) <= 2
    named = set[str]().union(
        *(catalogue.read(inner, number).chunks for number in catalogue.numbers(inner))
    )
    assert {file.path.rpartition("/")[2] for file in inner.list("chunks")} == named
    history.store.close()


def test_no_entry_counts_that_is_newer_than_the_manifests(tmp_path: Path) -> None:
    """A manifest is published, and then an entry is written, after the files were listed: an entry
    may belong to a lifetime of the cluster that only the newer manifest names."""
    url = f"file://{tmp_path}/log"
    inner = open_store(url)
    with imap_wal.open(url, node="n1") as store:
        store.map("a")["before"] = 1
        looked: list[str] = []

        def happen() -> None:
            looked.append("")
            if len(looked) == first_read:
                manifests.update(lambda now: replace(now, generation=now.generation + 1))
                store.map("a")["after"] = "x" * 1000

        busy = Busy(inner, happen, random.Random(1))
        manifests = ClusterLog(Context(inner), "default", "embedded").manifests
        first_read = 10**9
        busy.list("default/embedded")
        first_read = 2 * len(looked) + 1  # the first call after the next listing
        captured = capture(ClusterLog(Context(busy), "default", "embedded"))
        number = manifests.read()[0]
        assert f"default/embedded/manifest/{number:010d}.json" in captured.contents
        assert [front.end > 1000 for front in captured.fronts.values()] == [True]


def test_a_log_opened_before_its_restore_ends_keeps_positions(tmp_path: Path) -> None:
    """Once a cluster's manifest is there, a waiting agent opens its log. The restore then ended the
    epoch of that agent: readers of its entries got `OtherHistory`."""
    log = dict[str, Any](cluster="c", node="n")
    with imap_wal.log.create(tmp_path / "log", **log) as written:
        written.append("m", (b"a", b"1"))
    backups, copy = open_store(str(tmp_path / "backups")), tmp_path / "copy"
    copied = open_store(str(tmp_path / "log"))
    logs = [ClusterLog(Context(copied), "default", "c")]
    back_up(logs, backups, clock=SystemClock(), holder="test")
    running: list[imap_wal.log.Log] = []

    class Waiting:
        """A program opens the log as soon as it can."""

        def __init__(self, inner: SegmentStore) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def create(self, path: str, data: bytes) -> None:
            self._inner.create(path, data)
            if path.startswith("default/c/manifest/"):
                running.append(imap_wal.log.open(copy, preallocate=False, **log))
                running[0].append("m", (b"b", b"2"))

    target = open_store(str(copy))
    restore_backup(backups, catalogue.read(backups, 1), cast(SegmentStore, Waiting(target)))
    with running[0] as opened:
        opened.append("m", (b"c", b"3"))
        found = list(opened.read())
        assert [record.entry.key for record in found] == [b"a", b"b", b"c"]
        for number, record in enumerate(found):
            again = imap_wal.log.LogReader(copy, **log).read(str(record.position))
            assert len(list(again)) == len(found) - number
