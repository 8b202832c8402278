"""Two nodes claim the same change of a key: every command that looks reports it, `rewrite
--resolve` decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from imap_wal.restore import ClusterLog
from storage_backends import SegmentStore, open_store
from tests.cli.conftest import Run
from tests.histories import put
from tests.restore.test_live_view import append, node


@pytest.fixture
def split(tmp_path: Path) -> str:
    """What both halves of a split network left: key a is in conflict, key c was; b never."""
    url = f"file://{tmp_path}/split"
    store = open_store(url)
    first, second = node(store), node(store, "n2")
    append(first, put("a", "1", (1, 1, 1, 1), timestamp_ms=5), put("b", "1", (1, 1, 1, 2)))
    append(second, put("a", "2", (1, 1, 1, 1), timestamp_ms=9), put("c", "2", (1, 1, 1, 2)))
    append(first, put("c", "1", (1, 1, 1, 3)), put("c", "3", (1, 2, 1, 4)))
    first.close()
    second.close()
    return url


@pytest.fixture
def store(split: str) -> SegmentStore:
    return open_store(split)


@pytest.mark.parametrize("command", ["verify", "doctor", "repair", "stat"])
def test_whoever_looks_names_map_key_and_positions(run: Run, split: str, command: str) -> None:
    """A restart fails on it, so no command may report that all is well."""
    options = ("--dry-run",) if command == "repair" else ()
    ended = run(command, split, *options, "-o", "json")
    assert ended.code == 3, ended.err
    text = run(command, split, *options).out
    assert "--resolve" in text
    for said in (ended.out.replace("\\", ""), text):
        assert "map 'orders', key b'a'" in said
        assert "00000001.00000001." in said, "the positions"
        assert "b'b'" not in said
        assert "b'c'" not in said, "something newer has settled it"


def test_stat_counts_what_is_not_in_doubt(run: Run, split: str) -> None:
    found = run("stat", split, "-o", "json").json
    assert sum(each["live"] for each in found["maps"]) == 3
    assert len(found["forecast"][0]["conflicts"]) == 1


def test_a_rewrite_leaves_it_until_it_is_told(run: Run, split: str, store: SegmentStore) -> None:
    ended = run("rewrite", split)
    assert ended.code == 1 and "--resolve newest" in ended.err
    assert store.list("ns/c/snapshot") == []
    assert run("rewrite", split, "--resolve", "oldest").code == 2
    assert run("rewrite", split, "--resolve", "node=n3").code == 2
    tried = run("rewrite", split, "--resolve", "newest", "--dry-run", "-o", "json").json
    assert tried["clusters"][0]["maps"][0]["conflicts"] == 1
    assert store.list("ns/c/set-aside") == []


@pytest.mark.parametrize(("how", "kept", "lost"), [("newest", "2", b"1"), ("node=n1", "1", b"2"), ("node=n2", "2", b"1")])
def test_a_rewrite_decides_and_keeps_what_lost(run: Run, split: str, store: SegmentStore, how: str, kept: str, lost: bytes) -> None:
    done = run("rewrite", split, "--resolve", how, "-o", "json").json["clusters"][0]["maps"][0]
    assert done["conflicts"] == 1
    from imap_wal.archive import batches, to_rows

    rows = [row for batch in batches(store, done["set_aside"]) for row in to_rows(batch)]
    assert [(row[1], row[3]) for row in rows] == [(b"a", lost)]
    for command in ("verify", "stat", "doctor"):
        assert "b'a'" not in run(command, split).out
    assert run("verify", split).code == 0
    live = {row[1]: row[3] for changes in ClusterLog(store, "ns", "c").changes() for row in changes.rows}
    assert live == {b"a": kept.encode(), b"b": b"1", b"c": b"3"}
    assert run("prune", split, "--yes").code == 0
    assert run("export", split, "--map", "orders").code == 0
    assert store.exists(done["set_aside"]), "prune leaves it"


def test_of_three_claims_one_stays_and_a_deletion_may_win(run: Run, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/three"
    store = open_store(url)
    for name, value, stamp in (("n1", "1", 3), ("n2", None, 4), ("n3", "3", 2)):
        log = node(store, name)
        append(log, put("a", value, (1, 1, 1, 1), timestamp_ms=stamp))
        log.close()
    done = run("rewrite", url, "--resolve", "newest", "-o", "json").json["clusters"][0]["maps"][0]
    assert (done["live"], done["conflicts"]) == (0, 1)
    from imap_wal.archive import batches, nodes_of

    kept = [name for batch in batches(store, done["set_aside"]) for name in nodes_of(batch)]
    assert sorted(kept) == ["n1", "n3"]
    assert run("verify", url).code == 0
