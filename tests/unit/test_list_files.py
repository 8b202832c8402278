"""Archives in list files: nothing that a manifest names is lost, whatever fails, and whoever else
publishes at the same time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from imap_wal import layout
from imap_wal.errors import CorruptLog, ShortLog
from imap_wal.manifest import list_files
from imap_wal.manifest import store as manifest_store
from imap_wal.manifest.list_files import Archive, Listed
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from storage_backends import NotFound, StorageError
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore
from tests.kit.actors import Interrupted
from tests.kit.effort import every, share
from tests.kit.list_files import FOLDER, archive, check, listed, log_of, paths, seeded, short_lists

KEEP = 8


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    short_lists(monkeypatch)
    monkeypatch.setattr(manifest_store, "KEEP", KEEP)


def change(
    log: NodeManifestLog, added: Iterable[Archive] = (), gone: Iterable[Archive] = ()
) -> NodeManifest:
    """One update, as archive runs and removals make them: one that was made is not repeated. It
    publishes also without a change of archives, as for a new segment."""
    added, gone = tuple(added), tuple(gone)

    def wanted(now: NodeManifest) -> NodeManifest | None:
        if added and added[-1].last.segment in now.requests:
            return None
        done = {**now.requests, added[-1].last.segment: 1} if added else now.requests
        changed = now.with_archives(added, gone)
        return replace(changed, newest=now.newest + 1, requests=done)

    return log.update(wanted)


def fill(store: Any, count: int) -> NodeManifest:
    log = log_of(store)
    for number in range(0, count, 2):
        change(log, [archive(number), archive(number + 1)])
    return log.read()[1]


def test_the_manifest_has_few_archives_and_names_lists(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fill(memory, 100)
    assert tuple(found.archives) == tuple(archive(number) for number in range(100))
    assert len(found.archives.direct) <= list_files.NEWEST_MAX
    sizes = [each.items for each in found.archives.lists]
    assert sum(size < list_files.LIST_MIN for size in sizes) <= 1
    assert all(size < 2 * list_files.LIST_MIN for size in sizes)
    number = log_of(memory).read()[0]
    document = json.loads(memory.read(f"{FOLDER}/manifest/{number:010d}.json"))
    assert len(document["lists"]) == len(sizes)
    monkeypatch.setattr(list_files, "unpacked", None)
    change(log_of(memory, 2))  # an update of something else reads no list


def test_an_update_writes_what_it_changes(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adding and removing an archive writes and reads as much with 5,000 archives as with 100."""
    monkeypatch.undo()
    costs = []
    for count in (3_000, 30_000):
        store = FaultyStore(MemoryStore(f"{memory.url[9:]}-{count}"))
        log = log_of(store)
        change(log, map(archive, range(count)))
        log = log_of(store, 2)
        before = store.count
        change(log, [archive(count)])
        change(log, [], [archive(1)])
        written = [each.path for each in store.operations[before:] if each.kind == "create"]
        read = [each for each in store.operations[before:] if each.kind == "read"]
        lists = [path for path in written if layout.list_number(path)]
        assert len(written) == 3 and len(lists) == 1
        manifest = max(path for path in written if path not in lists)
        assert len(store.inner.read(manifest)) < 60_000
        costs.append((len(written), len(read)))
    assert costs[0] == costs[1]


@every(3)
@pytest.mark.parametrize("seed", range(share(8, ci=40)))
def test_random_changes_against_a_plain_list(seed: int) -> None:
    """Two writers add, remove and replace archives. Operations fail before or after they are done,
    and processes die. After each step the newest manifest names what the list has, and every
    manifest that is kept can be read whole."""
    chosen = random.Random(seed)
    inner = MemoryStore(f"lists-{seed}")
    expected: set[str] = set()
    known = {archive(number).path: archive(number) for number in range(2_000)}
    number, stores = 0, [FaultyStore(inner), FaultyStore(inner)]
    logs = [log_of(store, seed * 10 + at) for at, store in enumerate(stores)]
    for step in range(250):
        at = chosen.randrange(2)
        added = [archive(number + each) for each in range(chosen.choice((0, 1, 1, 2, 9)))]
        number += len(added)
        some = sorted(expected)
        part = chosen.choice((0, 0, 1, 2, len(some) // 2))
        gone = [known[path] for path in chosen.sample(some, min(part, len(some)))]
        if chosen.random() < 0.4:
            fault = Fault(
                chosen.choice(("kill", "error")),
                at=chosen.randrange(1, 12),
                when=chosen.choice(("before", "after")),
            )
            stores[at] = FaultyStore(inner, Plan((fault,), seed))
            logs[at] = log_of(stores[at], seed * 10_000 + step)
        wanted = expected - {each.path for each in gone} | {each.path for each in added}
        try:
            change(logs[at], added, gone)
            outcomes = [wanted]
        except (StorageError, Killed):
            outcomes = [wanted, expected]
            stores[at] = FaultyStore(inner)
            logs[at] = log_of(stores[at], seed * 10_000 + step + 5_000)
        found = set(paths(log_of(inner, 99).read()[1]))
        assert found in outcomes, f"seed {seed}, step {step}"
        expected = found
        check(inner)
    # The next change of lists removes what crashes left.
    change(log_of(inner, seed), map(archive, range(1_990, 2_000)))
    assert listed(inner) <= check(inner), f"seed {seed}"


def others(store: Any, times: int) -> Callable[[], object]:
    """Another writer's updates: they add, remove, and make lists."""

    def work() -> None:
        log = log_of(store, 50)
        for each in range(times):
            change(log, [archive(500 + each)], [archive(each)] if each < 3 else [])

    return work


@every(2)
@pytest.mark.parametrize("times", [1, 6, KEEP + 8])
def test_another_writer_publishes_between_any_two_calls(memory: MemoryStore, times: int) -> None:
    """Nothing of either writer is lost: also if the other one sweeps the lists of this one before
    it publishes them, or deletes all manifests that it has read."""

    def begin(name: str) -> tuple[MemoryStore, Interrupted]:
        store = MemoryStore(f"{memory.url[9:]}-{name}")
        fill(store, 20)
        return store, Interrupted(store)

    _, counted = begin("count")
    added, gone = [archive(900 + each) for each in range(9)], [archive(4), archive(19)]
    change(log_of(counted, 2), added, gone)
    for at in range(counted.calls):
        store, slow = begin(f"at-{at}")
        slow.at, slow.meanwhile = at, others(store, times)
        try:
            change(log_of(slow, 2), added, gone)
        except NotFound:  # its manifest was replaced 64 times, so its lists are gone: try again
            assert times > KEEP
            change(log_of(store, 3), added, gone)
        wanted = {*range(20), *range(500, 500 + times), *range(900, 909)}
        wanted -= {*range(min(times, 3)), 4, 19}
        assert paths(log_of(store).read()[1]) == sorted(archive(each).path for each in wanted), at
        check(store)


def test_a_writer_that_slept_names_no_swept_list(memory: MemoryStore) -> None:
    """A writer has written its lists and sleeps. Others sweep them, and delete the manifests up to
    its number. It loses, and does not publish a manifest that names missing lists."""
    fill(memory, 20)
    slow = Interrupted(memory)
    slow.when = lambda kind, path: kind == "create" and "/manifest/" in path
    gone: list[set[str]] = []

    def meanwhile() -> None:
        before = listed(memory)
        others(memory, KEEP + 8)()
        gone.append(before - listed(memory))

    slow.meanwhile = meanwhile
    log = log_of(slow, 2)
    number, content = log.read()
    more = content.with_archives(map(archive, range(900, 910)))
    assert not log.publish(number, more)
    assert any(int(name[:10]) == number + 1 for name in gone[0]), "its lists were swept"
    check(memory)


def test_every_crash_leaves_the_state_before_or_after(memory: MemoryStore) -> None:
    """At each operation the process dies, before or after it is done."""

    def life(store: Any) -> None:
        log = log_of(store, 2)
        change(log, map(archive, range(100, 110)), [archive(3)])
        change(log, [archive(200)], [archive(105), archive(17)])
        for _ in range(KEEP):  # manifests and lists are deleted
            change(log)
        change(log, map(archive, range(300, 305)))

    def states() -> Iterator[list[int]]:
        now = set(range(20))
        yield sorted(now)
        now = now | set(range(100, 110)) - {3}
        yield sorted(now - {3})
        now = now - {3, 105, 17} | {200}
        yield sorted(now)
        yield sorted(now | set(range(300, 305)))

    allowed = [sorted(archive(each).path for each in state) for state in states()]
    fill(memory, 20)
    counted = FaultyStore(_copy(memory, "count"))
    life(counted)
    creates = [each.number for each in counted.operations if each.kind in ("create", "delete")]
    for at in creates:
        for when in ("before", "after"):
            store = _copy(memory, f"{at}-{when}")
            faulty = FaultyStore(store, Plan((Fault("kill", at=at, when=when),)))
            with pytest.raises(Killed):
                life(faulty)
            assert paths(log_of(store).read()[1]) in allowed, (at, when)
            check(store)


def _copy(store: MemoryStore, name: str) -> MemoryStore:
    copy = MemoryStore(f"{store.url[9:]}-{name}")
    for file in store.list(""):
        copy.create(file.path, store.read(file.path))
    return copy


@pytest.mark.parametrize("part", ["lists", "manifest"])
def test_a_create_without_an_answer_publishes_once(memory: MemoryStore, part: str) -> None:
    fill(memory, 20)
    fault = Fault("error", kind="create", path=f"*/{part}/*", when="after")
    before = log_of(memory).read()[0]
    change(log_of(FaultyStore(memory, Plan((fault,))), 2), map(archive, range(100, 110)))
    assert log_of(memory).read()[0] == before + 1
    assert len(log_of(memory).read()[1].archives) == 30
    check(memory)


def test_a_slow_reader_finds_its_lists(memory: MemoryStore) -> None:
    """A manifest that is kept keeps its lists. After 64 others, a reader must read again."""
    fill(memory, 20)
    _, old = log_of(memory, 3).read()
    log = log_of(memory, 2)
    for each in range(KEEP):
        change(log, map(archive, range(100 + 10 * each, 110 + 10 * each)), map(archive, range(8)))
    assert paths(old) == sorted(archive(each).path for each in range(20))
    late = next(each for each in log_of(memory, 4).former() if len(each.archives) == 20)
    for _ in range(3):
        change(log, map(archive, range(900, 905)))
        change(log, (), map(archive, range(900, 905)))
    with pytest.raises(NotFound):
        tuple(late.archives)


def test_a_missing_and_a_damaged_list_are_named(memory: MemoryStore) -> None:
    found = fill(memory, 40)
    first, second = found.archives.lists[:2]
    path = layout.list_path(FOLDER, first.name)
    whole = memory.read(path)
    memory.delete(path)
    with pytest.raises(ShortLog, match=f"{path} at byte 0: this list of {first.items} archives"):
        tuple(log_of(memory).read()[1].archives)
    memory.create(path, whole)
    other = layout.list_path(FOLDER, second.name)
    text = memory.read(other)
    for at in range(0, len(text), 7):
        memory.replace(other, text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        with pytest.raises(CorruptLog, match=f"{other} at byte 0: .* checksum in the manifest"):
            tuple(log_of(memory).read()[1].archives)
    change(log_of(memory, 2), [archive(100)])  # appending and archiving continue
    with pytest.raises(CorruptLog):
        change(log_of(memory, 3), (), [archive(number) for number in range(40)])


def test_lists_of_another_log_are_written_again(memory: MemoryStore) -> None:
    """A manifest that is published in another folder takes no names of lists from its own."""
    found = fill(memory, 40)
    other = NodeManifestLog(seeded(memory, 7), "ns/c/nodes/other")
    other.publish(0, found)
    names = {each.name for each in found.archives.lists}
    there = other.read()[1]
    assert paths(there) == paths(found)
    assert names.isdisjoint(each.name for each in there.archives.lists)


def test_a_manifest_of_any_form_may_follow(memory: MemoryStore) -> None:
    """A publisher that knows no lists gives all archives, and none is lost."""
    found = fill(memory, 40)
    log_of(memory, 2).update(lambda now: replace(now, archives=Listed(found.archives[5:])))
    assert log_of(memory).read()[1].archives == Listed(found.archives[5:])
    check(memory)
    log_of(memory, 2).update(lambda now: NodeManifest(epoch=9), alone=True)
    assert log_of(memory).read()[1].archives == Listed()
    assert not listed(memory)


@pytest.mark.parametrize(
    "name", ["../../../x", "0000000001-", "1-ab", "0000000001-ab/../c", "0000000001-ab\n"]
)
def test_a_list_with_another_name_is_refused(memory: MemoryStore, name: str) -> None:
    found = fill(memory, 40)
    file = replace(found.archives.lists[0], name=name)
    forged = replace(found, archives=Listed((), (file,)))
    with pytest.raises(ValueError, match=r"pattern|regex"):
        NodeManifest.from_json(json.loads(json.dumps(forged.to_json())))
