"""Two nodes claim the same change of a key: no command fails, every command that finds the conflict
reports it, and `rewrite --resolve` and `repair --prefer` decide."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import imap_wal
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE
from imap_wal.parquet.columns import nodes_of, to_rows
from imap_wal.parquet.reader import batches
from imap_wal.placement import open_store
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from storage_backends import SegmentStore
from tests.cli.conftest import Run
from tests.histories import put
from tests.kit.effort import every
from tests.kit.logs import append, node


@pytest.fixture
def split(tmp_path: Path) -> str:
    """The logs of both halves of a split network: key a is in conflict, key c was, b never was."""
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
def test_commands_name_map_key_and_positions_of_a_conflict(
    run: Run, split: str, command: str
) -> None:
    """A reader chose for the operator, so no command may report success."""
    options = ("--dry-run",) if command == "repair" else ()
    ended = run(command, split, *options, "-o", "json")
    assert ended.code == 3, ended.err
    text = run(command, split, *options).out
    assert "--resolve" in text
    for printed in (ended.out.replace("\\", ""), text):
        said = " ".join(printed.split())
        assert "map 'orders', key b'a'" in said
        for name in ("n1", "n2"):
            assert f"ns/c/nodes/{name}/wal/00000001-00000001.wal at 00000001.00000001." in said, (
                "files and positions"
            )
        assert "that of node 'n1' counts" in said
        assert "b'b'" not in said
        assert "b'c'" not in said, "something newer has settled it"


def test_stat_counts_what_is_not_in_doubt(run: Run, split: str) -> None:
    found = run("stat", split, "-o", "json").json
    assert sum(each["live"] for each in found["maps"]) == 3
    assert len(found["forecast"][0]["conflicts"]) == found["forecast"][0]["conflict_keys"] == 1


def live(store: SegmentStore) -> dict[bytes, bytes | None]:
    with closing(MaterializedView(ClusterLog(Context(store), "ns", "c"), Settings())) as view:
        view.catch_up()
        return {row[KEY]: row[VALUE] for rows in view.rows("orders") for row in rows}


def test_a_rewrite_keeps_all_claims_without_a_resolution(
    run: Run, split: str, store: SegmentStore
) -> None:
    ended = run("rewrite", split, "-o", "json")
    assert ended.code == 0 and "b'a'" in ended.err, "a warning names the key"
    done = ended.json["clusters"][0]["maps"][0]
    assert (done["live"], done["undecided"], done["conflicts"]) == (3, 1, 0)
    assert run("prune", split, "--yes").code == 0
    assert store.list("ns/c/set-aside") == []
    assert live(store) == {b"a": b"1", b"b": b"1", b"c": b"3"}
    for command in ("verify", "doctor", "stat"):
        looked = run(command, split)
        assert looked.code == 3 and "b'a'" in looked.out, "still to be decided"
        assert f"{store.list('ns/c/snapshot')[0].path} (order" in " ".join(looked.out.split()), (
            "both are in the snapshot"
        )
    assert "1 key in conflict; the snapshot keeps all claims" in run("rewrite", split).err
    assert run("rewrite", split, "--resolve", "node=n2").code == 0
    assert live(store) == {b"a": b"2", b"b": b"1", b"c": b"3"}
    assert run("verify", split).code == 0


def test_an_invalid_resolution_is_refused(run: Run, split: str, store: SegmentStore) -> None:
    """A dry run writes nothing."""
    assert run("rewrite", split, "--resolve", "oldest").code == 2
    assert run("rewrite", split, "--resolve", "node=n3").code == 2
    tried = run("rewrite", split, "--resolve", "newest", "--dry-run", "-o", "json").json
    assert tried["clusters"][0]["maps"][0]["conflicts"] == 1
    (winner,) = tried["clusters"][0]["maps"][0]["winners"]
    assert (winner["key"], {winner["node"], *winner["over"]}) == ("b'a'", {"n1", "n2"})
    for chosen, other in (("n1", "n2"), ("n2", "n1")):
        shown = run("rewrite", split, "--resolve", f"node={chosen}", "--dry-run").out
        assert "1 key in conflict would be decided" in shown
        assert f"key b'a': the change by node {chosen!r} of " in shown
        assert f" counts, not that of {other!r}" in shown
    assert store.list("ns/c/set-aside") == store.list("ns/c/snapshot") == []


def test_a_forgotten_nodes_claim_can_be_chosen(run: Run, split: str, store: SegmentStore) -> None:
    """The claim is still found."""
    assert run("rewrite", split).code == 0
    assert run("forget-node", split, "--node", "n2", "--yes").code == 0
    assert live(store)[b"a"] == b"1"
    for command in ("verify", "doctor"):
        looked = run(command, split)
        assert looked.code == 3 and "b'a'" in looked.out
    assert run("rewrite", split, "--resolve", "node=n2").code == 0
    assert live(store)[b"a"] == b"2"


@pytest.mark.parametrize("readers", [("export",), ("export", "--as-of", "0s"), ("restore",)])
def test_readers_of_live_entries_report_a_conflict_and_succeed(
    run: Run, split: str, readers: tuple[str, ...]
) -> None:
    ended = run(readers[0], split, *readers[1:])
    assert ended.code == 0
    assert "map 'orders', key b'a'" in ended.err and "b'c'" not in ended.err
    if readers[0] == "export":
        assert {line["key"]["hex"]: line["value"]["hex"] for line in ended.lines} == {
            "61": "31",
            "62": "31",
            "63": "33",
        }


def test_a_store_with_a_conflict_opens_and_reports_it(
    split: str, caplog: pytest.LogCaptureFixture
) -> None:
    with imap_wal.open(split, namespace="ns", cluster="c", node="n3") as opened:
        assert len(opened.map("orders", serializer=Plain())) == 3
    assert "map 'orders', key b'a'" in caplog.text


class Plain:
    """The serializer of these logs."""

    name = "K"

    def dump_key(self, key: object) -> bytes:
        return self.dump(key)

    def load_key(self, data: bytes) -> object:
        return self.load(data)

    def dump(self, value: object) -> bytes:
        return str(value).encode()

    def load(self, data: bytes) -> object:
        return data.decode()


@pytest.mark.parametrize(("prefer", "kept", "lost"), [("n1", b"1", b"2"), ("n2", b"2", b"1")])
def test_a_repair_decides_in_the_copy_and_keeps_what_lost(
    run: Run, split: str, store: SegmentStore, tmp_path: Path, prefer: str, kept: bytes, lost: bytes
) -> None:
    before = [(file.path, store.read(file.path)) for file in store.list("")]
    tried = run("repair", split, "--prefer", prefer, "--dry-run", "-o", "json")
    assert tried.code == 0 and tried.json["summary"]["conflicts"] == []
    assert tried.json["summary"]["preferred"] == [
        {"cluster": "ns/c", "map": "orders", "keys": 1, "set_aside": ""}
    ]
    done = run("repair", split, "--to", f"file://{tmp_path}/copy", "--prefer", prefer, "-o", "json")
    assert done.code == 0 and done.json["summary"]["conflicts"] == []
    (decided,) = done.json["summary"]["preferred"]
    copy = open_store(f"file://{tmp_path}/copy")
    rows = [row for batch in batches(Context(copy), decided["set_aside"]) for row in to_rows(batch)]
    assert [(row[KEY], row[VALUE]) for row in rows] == [(b"a", lost)]
    assert live(copy) == {b"a": kept, b"b": b"1", b"c": b"3"}
    assert run("verify", f"file://{tmp_path}/copy").code == 0
    assert [
        (file.path, store.read(file.path))
        for file in store.list("")
        if "writer.lock" not in file.path
    ] == [each for each in before if "writer.lock" not in each[0]], "the log itself is only read"


def test_a_repair_decides_only_what_the_preferred_node_claims(run: Run, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/three"
    store = open_store(url)
    for name, keys in (("n1", "ab"), ("n2", "a"), ("n3", "b")):
        log = node(store, name)
        append(log, *(put(key, name, (1, 1, 1, 1)) for key in keys))
        log.close()
    done = run("repair", url, "--to", f"file://{tmp_path}/copy", "--prefer", "n2", "-o", "json")
    assert done.code == 3, "key b is still to be decided"
    assert (
        "key b'b'" in done.json["summary"]["conflicts"][0]
        and len(done.json["summary"]["conflicts"]) == 1
    )
    copy = open_store(f"file://{tmp_path}/copy")
    assert live(copy) == {b"a": b"n2", b"b": b"n1"}
    text = run("repair", url, "--to", f"file://{tmp_path}/again", "--prefer", "n2").out
    assert (
        "of 1 key in conflict the change of node 'n2' counts; the losing changes are in "
        "ns/c/set-aside/orders/" in text
    )
    assert "n1, n2, n3" in run("repair", url, "--dry-run", "--prefer", "n4").err


@every(2)
@pytest.mark.parametrize(
    ("how", "kept", "lost"), [("newest", "2", b"1"), ("node=n1", "1", b"2"), ("node=n2", "2", b"1")]
)
def test_a_rewrite_decides_and_keeps_what_lost(
    run: Run, split: str, store: SegmentStore, how: str, kept: str, lost: bytes
) -> None:
    done = run("rewrite", split, "--resolve", how, "-o", "json").json["clusters"][0]["maps"][0]
    assert done["conflicts"] == 1
    rows = [row for batch in batches(Context(store), done["set_aside"]) for row in to_rows(batch)]
    assert [(row[KEY], row[VALUE]) for row in rows] == [(b"a", lost)]
    for command in ("verify", "stat", "doctor"):
        assert "b'a'" not in run(command, split).out
    assert run("verify", split).code == 0
    held = {
        row[KEY]: row[VALUE]
        for changes in ClusterLog(Context(store), "ns", "c").changes()
        for row in changes.rows
    }
    assert held == {b"a": kept.encode(), b"b": b"1", b"c": b"3"}
    assert run("prune", split, "--yes").code == 0
    assert run("export", split, "--map", "orders").code == 0
    assert store.exists(done["set_aside"]), "prune leaves it"


def test_of_three_claims_one_is_kept_also_a_deletion(run: Run, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/three"
    store = open_store(url)
    for name, value, stamp in (("n1", "1", 3), ("n2", None, 4), ("n3", "3", 2)):
        log = node(store, name)
        append(log, put("a", value, (1, 1, 1, 1), timestamp_ms=stamp))
        log.close()
    done = run("rewrite", url, "--resolve", "newest", "-o", "json").json["clusters"][0]["maps"][0]
    assert (done["live"], done["conflicts"]) == (0, 1)
    kept = [
        name for batch in batches(Context(store), done["set_aside"]) for name in nodes_of(batch)
    ]
    assert sorted(kept) == ["n1", "n3"]
    assert run("verify", url).code == 0
