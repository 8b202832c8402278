"""Two actors, each in the middle of something: the cases that were found by hand, one test each.
`tests/simulation` finds them by itself."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal import layout
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.embedded.store import Store
from imap_wal.errors import (
    CorruptLog,
    Fenced,
    ImapWalError,
    LogError,
    LostRace,
    MissingNode,
    OutcomeUnknown,
    WriterLocked,
)
from imap_wal.manifest.node import node_manifests
from imap_wal.read.cluster import ClusterLog, pin_cuts
from imap_wal.read.view import MaterializedView
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends import NotFound, Unavailable, open_store
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from storage_backends.split import SplitStore
from tests.kit.actors import NODE, Interrupted, compact, embedded, log_of


def values(store: Any) -> dict[str, Any]:
    view = MaterializedView(log_of(store), Settings())
    view.catch_up()
    found = {row[1]: row[3] for rows in view.rows("m") for row in rows}
    view.close()
    return found  # type: ignore[return-value]


def test_a_view_during_rewrite_and_prune_has_every_key(memory: MemoryStore) -> None:
    """C1: the cluster's manifest was read before those of the nodes, so an old snapshot was used
    with a log without its covered part."""
    with embedded(memory) as store:
        store.map("m").update({f"k{number}": number for number in range(100)})
        store.archive()
    for at in range(40):
        left = MemoryStore(f"view-{at}-{id(memory)}")
        for file in memory.list(""):
            left.create(file.path, memory.read(file.path))
        slow = Interrupted(left)
        slow.at, slow.meanwhile = at, lambda left=left: compact(left)
        view = MaterializedView(log_of(slow), Settings())
        view.catch_up()
        assert sum(map(len, view.keys("m"))) == 100, f"compacted before call {at}"
        with embedded(left) as again:
            again.map("m")["later"] = 1
        view.catch_up()
        assert sum(map(len, view.keys("m"))) == 101
        view.close()


def test_a_replaced_writers_archive_run_deletes_nothing(memory: MemoryStore) -> None:
    """C2: its sweep took archives that the successor had written and not yet named for its own
    leftovers."""
    old = embedded(memory)
    old.map("m")["old"] = 0
    slow = Interrupted(memory)
    new = embedded(slow, takeover=True)
    new.map("m").update({f"k{number}": number for number in range(50)})
    errors: list[ImapWalError] = []

    def timer() -> None:
        try:
            old.archive()
        except ImapWalError as error:
            errors.append(error)

    slow.when = lambda name, path: name == "create" and "/manifest/" in path
    slow.meanwhile = timer
    new.archive()
    assert errors and isinstance(errors[0], Fenced), "the old one reports that it was replaced"
    new.close()
    with embedded(memory) as again:
        assert len(again.map("m")) == 51


def test_an_archive_run_after_a_takeover_names_nothing(memory: MemoryStore) -> None:
    """C2: the epoch is checked inside the compare-and-swap of the archive run itself."""
    slow = Interrupted(memory)
    old = embedded(slow)
    old.map("m").update({f"k{number}": number for number in range(20)})
    successor: list[Store] = []

    def replace_it() -> None:
        successor.append(embedded(memory, takeover=True))
        successor[0].map("m")["k0"] = "new"

    slow.when = lambda name, path: name == "create" and "/manifest/" in path
    old.committer.rotate()
    slow.meanwhile = replace_it
    with pytest.raises(Fenced):
        old.archive()
    successor[0].archive()
    successor[0].close()
    with embedded(memory) as again:
        assert again.map("m")["k0"] == "new" and len(again.map("m")) == 20


@pytest.mark.parametrize("kind", ["append", "objects"])
def test_a_takeover_during_an_archive_run_succeeds(tmp_path: Path, kind: str) -> None:
    """C3: the takeover acted on a manifest from before its fence; the archive run between them
    moved what the fence was placed by."""
    for at in range(150):
        root = str(tmp_path / f"{kind}-{at}")
        inner = LocalStore(root) if kind == "append" else LocalObjects(root)
        old = embedded(inner)
        acknowledged = {}
        for number in range(5):
            old.map("m")[f"k{number}"] = acknowledged[f"k{number}"] = number

        def work(old: Store = old, acknowledged: dict[str, int] = acknowledged) -> None:
            try:
                old.archive()
                old.map("m")["after"] = 1
                acknowledged["after"] = 1
            except ImapWalError:
                pass

        slow = Interrupted(inner)
        slow.at, slow.meanwhile = at, work
        new = embedded(slow, takeover=True)
        opened = slow.calls
        try:
            old.map("m")["never"] = 1
        except ImapWalError:
            pass
        else:
            pytest.fail(f"both acknowledge, archived before call {at}")
        new.map("m")["new"] = acknowledged["new"] = 2
        assert dict(new.map("m")) == acknowledged, f"archived before call {at}"
        new.close()
        with embedded(inner) as again:
            assert {key: again.map("m")[key] for key in acknowledged} == acknowledged
        if opened <= at:
            return
    pytest.fail("an open takes more calls than were tried")


def written(root: Path, **options: Any) -> None:
    with imap_wal.open(str(root), node="n1", preallocate=False, **options) as store:
        for number in range(10):
            store.map("m").update({f"k{number}-{index}": index for index in range(10)})
            if number % 3 == 2:
                store.archive()


def test_a_nodes_manifest_put_back_is_refused(tmp_path: Path) -> None:
    """C5: it opened with fewer keys, and the next open ignored entries of a lower epoch. Now
    nothing is acknowledged."""
    root = tmp_path / "log"
    written(root)
    shutil.copytree(root / NODE / "manifest", tmp_path / "old")
    written(root)
    shutil.rmtree(root / NODE / "manifest")
    shutil.copytree(tmp_path / "old", root / NODE / "manifest")
    with pytest.raises(LogError, match=r"older than the files|missing"):
        imap_wal.open(str(root), node="n1")


def test_a_nodes_folder_put_back_below_a_snapshot_is_refused(tmp_path: Path) -> None:
    """Its next epoch is one that a mark of the snapshot names: what it acknowledged was taken for
    covered."""
    root = tmp_path / "log"
    written(root)
    shutil.copytree(root / NODE, tmp_path / "old")
    written(root)
    rewrite(log_of(open_store(str(root))), LocalEngine())
    shutil.rmtree(root / NODE)
    shutil.copytree(tmp_path / "old", root / NODE)
    for node in ("n1", "n2"):
        with pytest.raises(LogError, match="older than the files"):
            imap_wal.open(str(root), node=node)


def test_a_clusters_manifest_put_back_is_refused(tmp_path: Path) -> None:
    """Otherwise an incarnation would be given twice."""
    root = tmp_path / "log"
    written(root)
    folder = root / "default/embedded/manifest"
    shutil.copytree(folder, tmp_path / "old")
    written(root)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "old", folder)
    for node in ("n1", "n2", "n1", "n2"):
        with pytest.raises(CorruptLog, match="older than the files"):
            imap_wal.open(str(root), node=node)
    with pytest.raises(CorruptLog, match="older than the files"):
        log_of(open_store(str(root))).state()


def test_a_clusters_manifest_that_is_gone_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "log"
    written(root)
    shutil.rmtree(root / "default/embedded/manifest")
    with pytest.raises(CorruptLog, match="older than the files"):
        imap_wal.open(str(root), node="n1")


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_a_copy_of_an_archiving_log_is_whole_or_refused(tmp_path: Path, order: str) -> None:
    """C5: a list of files, then one file after the other; what is gone by then is passed over, as
    some tools do."""
    refused = whole = 0
    for at in range(0, 60, 3):
        root, copy = tmp_path / f"log{at}", tmp_path / f"copy{at}"
        store = imap_wal.open(str(root), node="n1", preallocate=False)
        kept = {}

        def work(start: int, store: Store = store, kept: dict[str, int] = kept) -> None:
            for number in range(start, start + 4):
                store.map("m")[f"k{number}"] = kept[f"k{number}"] = number
                store.committer.rotate()

        work(0)
        store.archive()
        work(4)
        before = dict(kept)
        files = sorted(
            (path for path in root.rglob("*") if path.is_file()), reverse=order == "backwards"
        )
        for number, path in enumerate(files):
            if number == at:
                store.archive()
                work(8)
                compact(open_store(str(root)))
                store.archive()
            target = copy / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                shutil.copyfile(path, target)
        store.close()
        try:
            with imap_wal.open(str(copy), node="n1") as opened:
                found = dict(opened.map("m"))
            whole += 1
        except ImapWalError:
            refused += 1
            continue
        assert {key: found.get(key) for key in before} == before, (
            f"the log moved on before file {at}"
        )
        if at >= len(files):
            break
    assert refused and whole


def test_a_wal_dir_of_another_machine_is_missing(tmp_path: Path) -> None:
    """C6: for readers, cuts and opens. A folder of that name on this machine's disk was an empty
    log, and the next cut made everything in the real one void."""
    root = LocalStore(str(tmp_path / "root"))
    here, elsewhere = (
        SplitStore(root, LocalStore(str(tmp_path / "here"))),
        SplitStore(root, LocalStore(str(tmp_path / "elsewhere"))),
    )
    with embedded(here) as store:
        store.map("m").update({f"k{number}": number for number in range(1000)})
    with pytest.raises(MissingNode, match="wal_dir"):
        values(elsewhere)
    with pytest.raises(MissingNode, match="wal_dir"):
        embedded(elsewhere)
    assert pin_cuts(log_of(elsewhere))["n1"] > pin_cuts(log_of(here))["n1"], (
        "what it holds counts if it returns"
    )
    with embedded(here) as store:
        assert len(store.map("m")) == 1000
    with embedded(elsewhere, node="n2", recovery_policy="partial") as store:
        assert len(store.map("m")) == 0


def test_a_refused_open_does_not_block_others(tmp_path: Path) -> None:
    """Two machines with one name for their own disks: the second was refused when it was already
    registered, and then the first could not open either."""
    root = LocalStore(str(tmp_path / "root"))
    here, elsewhere = (
        SplitStore(root, LocalStore(str(tmp_path / "here"))),
        SplitStore(root, LocalStore(str(tmp_path / "elsewhere"))),
    )
    with embedded(here) as store:
        store.map("m")["a"] = 1
    with pytest.raises(MissingNode):
        embedded(elsewhere, node="n2")
    with embedded(here) as store:
        assert dict(store.map("m")) == {"a": 1}


def test_a_node_without_its_wal_dir_continues_on_request(tmp_path: Path) -> None:
    """It continues with its archives."""
    root = LocalStore(str(tmp_path / "root"))
    lost, new = (
        SplitStore(root, LocalStore(str(tmp_path / "lost"))),
        SplitStore(root, LocalStore(str(tmp_path / "new"))),
    )
    with embedded(lost) as store:
        store.map("m").update({"archived": 1, "deleted": 1})
        store.archive()
        del store.map("m")["deleted"]
    rewrite(log_of(lost), LocalEngine())
    with embedded(new, recovery_policy="partial") as store:
        assert dict(store.map("m")) == {"archived": 1}, "what a snapshot covers is still covered"
        store.map("m")["new"] = 2
    with embedded(new) as store:
        assert dict(store.map("m")) == {"archived": 1, "new": 2}
    with pytest.raises(MissingNode):
        embedded(lost)


@pytest.mark.parametrize("kind", ["append", "objects"])
@pytest.mark.parametrize("part", ["", "wal"])
@pytest.mark.parametrize("archived", [False, True])
def test_partial_never_continues_with_another_log(
    tmp_path: Path, part: str, archived: bool, kind: str
) -> None:
    """It continues without a missing log. It took another log in, or took its segments for archived
    ones, which are deleted."""
    make = LocalStore if kind == "append" else LocalObjects
    own, other = make(str(tmp_path / "own")), make(str(tmp_path / "other"))
    for store, key in ((own, "own"), (other, "foreign")):
        with embedded(store) as opened:
            opened.map("m")[key] = 1
            if archived and not part:
                opened.archive()
    folder, foreign = (
        tmp_path / place / "default/embedded/nodes/n1" / part for place in ("own", "other")
    )
    shutil.rmtree(folder)
    shutil.copytree(foreign, folder)
    before = sorted(folder.rglob("*"))
    for policy in ("full", "partial"):
        with pytest.raises(
            MissingNode,
            match=f"move default/embedded/nodes/n1{part and '/wal'} away first, and open with "
            "recovery_policy='partial'",
        ):
            embedded(own, recovery_policy=policy)
    assert {path for path in before if "writer.lock" not in path.name} <= set(folder.rglob("*"))
    folder.rename(tmp_path / "away")
    with embedded(own, recovery_policy="partial") as opened:
        assert dict(opened.map("m")) == {}
        opened.map("m")["new"] = 2
    with embedded(own) as opened:
        assert dict(opened.map("m")) == {"new": 2}


def test_a_first_open_that_is_overtaken_finds_no_damage(memory: MemoryStore) -> None:
    """Another process overtakes it at any call: it looks at a node without a manifest before it
    takes the lock, and the cluster's manifest, read after that, names the log that the other
    process began."""
    for at in range(60):
        store = MemoryStore(f"overtaken-{at}-{id(memory)}")
        slow = Interrupted(store)

        def others(store: MemoryStore = store) -> None:
            with embedded(store, takeover=True) as opened:
                opened.map("m")["a"] = 1

        slow.at, slow.meanwhile = at, others
        try:
            embedded(slow, takeover=True).close()
        except (Fenced, LostRace, OutcomeUnknown, WriterLocked):
            pass  # the other process took over in the middle
        with embedded(store, takeover=True) as opened:
            assert dict(opened.map("m")) == ({"a": 1} if slow.at is None else {}), at


@pytest.mark.parametrize("kind", ["append", "objects"])
def test_a_partial_open_that_ended_at_any_call_is_repeated(tmp_path: Path, kind: str) -> None:
    """It has begun another log than the registered one. That log is empty, so it is not a foreign
    log."""

    class Crash(Exception):
        """The process ends here."""

    for at in range(0, 200, 1 if kind == "append" else 3):
        store = (
            MemoryStore(f"{tmp_path}-{at}")
            if kind == "append"
            else LocalObjects(str(tmp_path / str(at)))
        )
        with embedded(store) as opened:
            opened.map("m")["lost"] = 1
        for file in store.list("default/embedded/nodes/n1"):
            store.delete(file.path)
        slow = Interrupted(store)

        def crash() -> None:
            raise Crash

        slow.at, slow.meanwhile = at, crash
        try:
            embedded(slow, recovery_policy="partial").close()
        except Crash:
            pass
        else:
            assert at > 10
            return
        with embedded(store, recovery_policy="partial", takeover=True) as opened:
            opened.map("m")["new"] = 2
        with embedded(store) as opened:
            assert dict(opened.map("m")) == {"new": 2}, at
    pytest.fail("an open takes more calls than were tried")


@pytest.mark.parametrize("kind", ["append", "objects"])
def test_a_store_under_another_node_shuts_the_former_out(tmp_path: Path, kind: str) -> None:
    """C7: two hosts on one root both acknowledged, and a deletion came back."""
    inner = LocalStore(str(tmp_path)) if kind == "append" else LocalObjects(str(tmp_path))
    first = embedded(inner, "host-a")
    first.map("m").update({"a": 1, "b": 1})
    with embedded(inner, "host-b") as second:
        del second.map("m")["a"]
        with pytest.raises((OutcomeUnknown, Fenced)):
            first.map("m")["a"] = 2
        assert dict(second.map("m")) == {"b": 1}
    with embedded(inner, "host-a") as again:
        assert dict(again.map("m")) == {"b": 1}


def test_stores_that_ask_to_share_a_root_all_acknowledge(memory: MemoryStore) -> None:
    with embedded(memory, "n1", shared=True) as one, embedded(memory, "n2", shared=True) as two:
        one.map("m")["a"] = 1
        two.map("m")["b"] = 2
        one.map("m")["c"] = 3
    with embedded(memory, "n1") as again:
        assert dict(again.map("m")) == {"a": 1, "b": 2, "c": 3}


def test_a_writer_without_permits_is_shut_out(memory: MemoryStore) -> None:
    """Its version did not have permits; the fence shuts it out."""
    old = embedded(memory)
    old.map("m")["a"] = 1
    log = old.committer.log
    log.manifests.update(
        lambda manifest: replace(manifest, wal_id="", newest=0)
    )  # as that version leaves it
    for file in memory.list(f"{NODE}/wal"):
        if not file.path.endswith(".wal"):
            memory.delete(file.path)
    with embedded(memory, takeover=True) as new:
        assert memory.exists(layout.old_fence_path(NODE, log.epoch))
        assert dict(new.map("m")) == {"a": 1}


def test_a_segment_that_a_replaced_writer_begins_late_is_void(memory: MemoryStore) -> None:
    """Its successor had written nothing, so no segment of it showed that this one came too late;
    and a deletion came back."""
    slow = Interrupted(memory)
    first = embedded(slow, "a")
    first.map("m").update({"k": 1, "other": 1})
    first.archive()
    opened: list[Store] = []

    def replace_it() -> None:
        opened.append(embedded(memory, "b"))
        del opened[0].map("m")["k"]
        compact(memory)
        slow.when = lambda name, path: name == "create" and "/manifest/" in path
        slow.meanwhile = unavailable

    def unavailable() -> None:
        raise Unavailable("once")

    slow.when, slow.meanwhile = lambda name, path: name == "open_append", replace_it
    with pytest.raises(ImapWalError):
        first.map("m")["k"] = "late"
    opened[0].close()
    for node in ("b", "a"):
        with embedded(memory, node) as again:
            assert dict(again.map("m")) == {"other": 1}


class AppendsByName(LocalStore):
    """As on HDFS: an append writes to the file that has the name at that time."""

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Any:
        inner = super().open_append(path)
        store = self

        class ByName:
            def __init__(self) -> None:
                self.path, self.size = path, 0

            def append(self, *chunks: bytes) -> None:
                if not store.exists(path):
                    raise NotFound("no such file", path)
                with (Path(store.root) / path).open("r+b") as file:
                    file.seek(0, 2)
                    file.write(b"".join(chunks))
                self.size += sum(map(len, chunks))

            def sync(self) -> None: ...

            def truncate(self, size: int) -> None:
                store.truncate(path, size)
                self.size = size

            def close(self) -> None:
                inner.close()

        return ByName()


def test_a_late_append_does_not_reach_a_recovered_segment(tmp_path: Path) -> None:
    """C8: on HDFS, the append of a replaced writer went into the recovered copy of the same name,
    and the next open said ShortLog."""
    store = AppendsByName(str(tmp_path))
    old = embedded(store)
    old.map("m")["a"] = 1
    new = embedded(store, takeover=True)
    new.map("m")["b"] = 2
    with pytest.raises(ImapWalError):
        old.map("m")["late"] = 3
    new.close()
    for _ in range(2):
        with embedded(store) as again:
            assert dict(again.map("m")) == {"a": 1, "b": 2}


def test_an_archive_run_never_deletes_what_has_its_name(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m")["a"] = 1
        store.committer.rotate()
        log = store.committer.log
        archive_sealed(memory, NODE, "n1", log.manifests, epoch=log.epoch, writing=log.unsealed)
    manifest = node_manifests(memory, NODE, SystemClock(), SystemRandomness()).read()[1]
    (archive,) = manifest.archives
    name = layout.parse_archive_path(archive.path)
    assert name is not None and name.epoch == 1 and name.last == archive.last


def test_a_nodes_folder_from_an_earlier_open_is_refused(tmp_path: Path) -> None:
    """Older manifests beside older segments: only the cluster's manifest knows of later opens."""
    root = tmp_path / "log"
    folder = root / "default/embedded/nodes/embedded"
    with imap_wal.open(root) as store:
        store.map("m")["old"] = 1
    shutil.copytree(folder, tmp_path / "copy")
    with imap_wal.open(root) as store:
        store.map("m")["new"] = 1
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    with pytest.raises(CorruptLog, match="epoch 2 of this log was opened"):
        imap_wal.open(root)
    with pytest.raises(CorruptLog, match="nodes/embedded/manifest"):
        ClusterLog(open_store(str(root)), "default", "embedded").state()


def test_a_cluster_without_its_manifests_is_not_empty(tmp_path: Path) -> None:
    """Readers refuse it."""
    with imap_wal.open(tmp_path) as store:
        store.map("m")["a"] = 1
    shutil.rmtree(tmp_path / "default/embedded/manifest")
    with pytest.raises(CorruptLog, match="has seen"):
        ClusterLog(open_store(str(tmp_path)), "default", "embedded").state()
