"""Cases that were found by hand: an archive run, a rewrite or a prune at the same time as another
actor."""

from __future__ import annotations

from pathlib import Path

import pytest

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.embedded.store import Store
from imap_wal.errors import Fenced, ImapWalError
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.read.view import MaterializedView
from imap_wal.retention.archive import archive_sealed
from imap_wal.settings import Settings
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.actors import NODE, Interrupted, compact, embedded, log_of
from tests.kit.effort import thorough


def test_a_view_during_rewrite_and_prune_has_every_key(memory: MemoryStore) -> None:
    """C1: the cluster's manifest was read before those of the nodes, so an old snapshot was used
    with a log without its covered part."""
    with embedded(memory) as store:
        store.map("m").update({f"k{number}": number for number in range(100)})
        store.archive()
    for at in range(40):
        left = MemoryStore(f"view-{at}-{memory.url[9:]}")
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
    """C2: its sweep took archives of the successor, which no manifest named yet, for its own
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


@thorough
@pytest.mark.parametrize("kind", ["append", pytest.param("objects", marks=thorough)])
def test_a_takeover_during_an_archive_run_succeeds(tmp_path: Path, kind: str) -> None:
    """C3: the takeover used a manifest from before its fence; the archive run between them moved
    the position at which the fence was placed."""
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


def test_an_archives_name_has_its_epoch_and_its_end(memory: MemoryStore) -> None:
    """So two archive runs do not write, or delete, a file of one name."""
    with embedded(memory) as store:
        store.map("m")["a"] = 1
        store.committer.rotate()
        log = store.committer.log
        archive_sealed(
            Context(memory), NODE, "n1", log.manifests, epoch=log.epoch, writing=log.unsealed
        )
    manifest = NodeManifestLog(Context(memory), NODE).read()[1]
    (archive,) = manifest.archives
    name = layout.parse_archive_path(archive.path)
    assert name is not None and name.epoch == 1 and name.last == archive.last
