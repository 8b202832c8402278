"""Cases that were found by hand: an open without a log that is registered."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.entry import KEY, VALUE
from imap_wal.errors import Fenced, LostRace, MissingNode, OutcomeUnknown, WriterLocked
from imap_wal.placement.router import SplitStore
from imap_wal.read.view import MaterializedView
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import RecoveryPolicy, Settings
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.actors import Interrupted, embedded, log_of
from tests.kit.effort import every, step


def values(store: Any) -> dict[str, Any]:
    view = MaterializedView(log_of(store), Settings())
    view.catch_up()
    found = {row[KEY]: row[VALUE] for rows in view.rows("m") for row in rows}
    view.close()
    return found  # type: ignore[return-value]


def test_a_wal_dir_of_another_machine_is_missing(tmp_path: Path) -> None:
    """C6: for readers, cuts and opens. A folder of that name on this machine's disk looked like an
    empty log, and the next cut made everything in the real one void."""
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
    assert find_cutoffs(log_of(elsewhere)).cuts["n1"] > find_cutoffs(log_of(here)).cuts["n1"], (
        "its entries count if it returns"
    )
    with embedded(here) as store:
        assert len(store.map("m")) == 1000
    with embedded(elsewhere, node="n2", recovery_policy="partial") as store:
        assert len(store.map("m")) == 0


@pytest.mark.parametrize("policy", RecoveryPolicy)
def test_a_rewrite_without_wal_dir_keeps_deleted_keys_deleted(
    tmp_path: Path, policy: RecoveryPolicy
) -> None:
    """The archive has the key, and only the segments on another machine have its deletion. As an
    empty log, they would be covered and pruned."""
    root = LocalStore(str(tmp_path / "root"))
    here, elsewhere = (
        SplitStore(root, LocalStore(str(tmp_path / "here"))),
        SplitStore(root, LocalStore(str(tmp_path / "elsewhere"))),
    )
    with embedded(here) as store:
        store.map("m").update({"deleted": 1, "kept": 1})
        store.archive()
        del store.map("m")["deleted"]
    if policy is RecoveryPolicy.FULL:
        with pytest.raises(MissingNode, match="wal_dir is on another machine"):
            rewrite(log_of(elsewhere), LocalEngine(), policy=policy)
    else:
        assert "n1" in rewrite(log_of(elsewhere), LocalEngine(), policy=policy).missing
    assert "n1" in prune(log_of(elsewhere)).skipped
    with embedded(here) as store:
        assert dict(store.map("m")) == {"kept": 1}
    rewrite(log_of(here), LocalEngine())
    prune(log_of(here))
    with embedded(here) as store:
        assert dict(store.map("m")) == {"kept": 1}


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


@every(3)
@pytest.mark.parametrize("kind", ["append", "objects"])
@pytest.mark.parametrize("part", ["", "wal"])
@pytest.mark.parametrize("archived", [False, True])
def test_partial_never_continues_with_another_log(
    tmp_path: Path, part: str, archived: bool, kind: str
) -> None:
    """It continues without a missing log. It used another log, or treated its segments as archived
    and deleted them."""
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
    for at in range(0, 60, min(step(), 3)):
        store = MemoryStore(f"overtaken-{at}-{memory.url[9:]}")
        slow = Interrupted(store)

        def others(store: MemoryStore = store) -> None:
            with embedded(store, takeover=True) as opened:
                opened.map("m")["a"] = 1

        slow.at, slow.meanwhile = at, others
        try:
            embedded(slow, takeover=True).close()
        except (Fenced, LostRace, OutcomeUnknown, WriterLocked):
            pass  # the other process took over meanwhile
        with embedded(store, takeover=True) as opened:
            assert dict(opened.map("m")) == ({"a": 1} if slow.at is None else {}), at


@every(2)
@pytest.mark.parametrize("kind", ["append", "objects"])
def test_a_partial_open_that_ended_at_any_call_is_repeated(tmp_path: Path, kind: str) -> None:
    """It has begun another log than the registered one. That log is empty, so it is not a foreign
    log."""

    class Crash(Exception):
        """The process ends here."""

    for at in range(0, 200, min(step(), 3) if kind == "append" else 3):
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
