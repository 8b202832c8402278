"""`imap-wal query`: the rows that SQL finds in a log, compared with dump, export and the maps."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hazelcast.config import Config
from hazelcast.core import HazelcastJsonValue
from hazelcast.serialization.service import SerializationServiceV1

import imap_wal
from imap_wal.clock import SystemClock
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import EntryBatch, Scope
from storage_backends import NotFound, open_store
from tests.cli.conftest import Run, found
from tests.encrypted import key_file
from tests.kit.effort import every
from tests.kit.logs import append, node
from tests.kit.orders import LIVE

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def every_kind(run: Run, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Two nodes; a snapshot, archives and open segments; deletes, expired entries, a clear."""
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url, node="n1") as store:
        store.map("m").update({f"k{number}": number for number in range(50)})
        store.map("cleared").update({1: "gone", 2: "gone"})
        store.archive()
        del store.map("m")["k1"]
    assert run("rewrite", url).code == 0
    with imap_wal.open(url, node="n2") as store:
        store.map("m")["k2"] = "of n2"
        del store.map("m")["k3"]
        store.map("cleared").clear()
        store.map("cleared")[3] = "after"
        store.archive()
        store.map("m")["k4"] = "in a segment"
        del store.map("m")["k5"]
    with imap_wal.open(url, node="n1", clock=SystemClock(-10_000)) as store:
        store.map("m").put("short", "expired", ttl=5)
        store.map("m").put("k6", "expired", ttl=5)
        store.map("dead").put("k", "expired", ttl=5)
    with imap_wal.open(url, node="n3") as store:
        live = {str(key): value for key, value in store.map("m").items()}
    return url, live


def test_latest_has_what_the_map_has(run: Run, every_kind: tuple[str, dict[str, Any]]) -> None:
    url, live = every_kind
    assert not {"k1", "k3", "k5", "k6", "short"} & set(live), "deleted, or expired"
    assert found(run("query", url, "from m", "-o", "json")) == live
    assert found(run("query", url, "from latest.m", "-o", "json")) == live
    assert found(run("query", url, "from cleared", "-o", "json")) == {3: "after"}
    assert found(run("query", url, "from dead", "-o", "json")) == {}, "known, but empty"


def comparable(row: dict[str, Any]) -> tuple[Any, ...]:
    """A change, from either command."""
    order = row.get("order") or [
        row[name] for name in ("incarnation", "partition_version", "session", "request")
    ]
    value = None if row["deleted"] else json.dumps(row.get("value_json", row.get("value")))
    key = row.get("key_text", row.get("key"))
    return (
        row["node"], None if key is None else str(key), value, row["deleted"], row["timestamp_ms"],
        row["expires_at_ms"], row["partition"], tuple(order),
    )  # fmt: skip


@every(2)
@pytest.mark.parametrize("pruned", [False, True])
def test_raw_has_each_change_of_dump_once(
    run: Run, every_kind: tuple[str, dict[str, Any]], pruned: bool
) -> None:
    """Dump shows a change again if it is also in a snapshot."""
    url, _ = every_kind
    if pruned:
        assert run("prune", url, "--yes").code == 0
    for name in ("m", "cleared", "dead"):
        dumped = run("dump", url, "--map", name, "-o", "json").lines
        rows = run("query", url, f"from raw.{name}", "-o", "json").lines
        assert len(rows) == len({comparable(row) for row in rows}) > 0
        assert {comparable(row) for row in rows} == {comparable(line) for line in dumped}
        assert {row["position"] for row in rows} == {
            line["position"] for line in dumped if line["position"]
        } | ({None} if name != "dead" and pruned else set())


@pytest.mark.parametrize("name", ["log-archives", "log-part-lists"])
def test_golden_logs_are_answered_like_export_and_dump(run: Run, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(GOLDEN / f"{name}.zip") as archive:
        archive.extractall(tmp_path / "log")
    exported = run("export", tmp_path / "log").lines
    dumped = run("dump", tmp_path / "log", "-o", "json").lines
    for map_name in {line["map"] for line in dumped}:
        quoted = '"' + map_name.replace('"', '""') + '"'
        latest = run("query", tmp_path / "log", f"from {quoted}", "-o", "json")
        assert list(found(latest).values()) == [
            line["value"] for line in exported if line["map"] == map_name
        ]
        raw = run("query", tmp_path / "log", f"from raw.{quoted}", "-o", "json").lines
        assert {comparable(row)[2:] for row in raw} == {
            comparable(line)[2:] for line in dumped if line["map"] == map_name
        }


def test_as_of_shows_both_views_as_they_were(run: Run, url: str) -> None:
    paid = run("dump", url, "--key", "o1", "-o", "json").lines[1]
    moment = paid["timestamp_ms"] - 1
    before = ("--as-of", f"@{moment}", "-o", "json")
    exported = run("export", url, "--map", "orders", "--as-of", f"@{moment}").lines
    live = {entry["key"]: entry["value"] for entry in exported}
    assert found(run("query", url, "from orders", *before)) == live != LIVE
    dumped = run("dump", url, "--map", "orders", "--until", f"@{moment + 1}", "-o", "json").lines
    raw = run("query", url, "from raw.orders", *before).lines
    assert {comparable(row) for row in raw} == {comparable(line) for line in dumped}
    assert run("query", url, "from orders", "--as-of", "2000-01-01").code == 1
    assert found(run("query", url, "from orders", "-o", "json")) == LIVE


def test_bytes_are_those_that_dump_takes(run: Run, url: str) -> None:
    (row,) = run(
        "query", url, "select key from orders where key_text->>'$' = 'o1'", "-o", "json"
    ).lines
    assert len(run("dump", url, "--key", row["key"], "-o", "json").lines) == 2


def test_a_damaged_log_is_named_not_half_answered(run: Run, url: str, root: Path) -> None:
    segment = min((root / "prod/eu/nodes/n1/wal").glob("*.wal"))
    data = bytearray(segment.read_bytes())
    data[120] ^= 1
    segment.write_bytes(data)
    for sql in ("from sessions", "from raw.orders"):
        ended = run("query", url, sql, "-o", "json")
        assert (ended.code, ended.out) == (1, "")
        assert segment.name in ended.err


def test_a_missing_node_stops_a_query_without_partial(run: Run, url: str, root: Path) -> None:
    (root / "prod/eu/nodes/n2").rename(root / "away")
    for sql in ("from orders", "from raw.orders"):
        ended = run("query", url, sql)
        assert ended.code == 1 and "n2" in ended.err
    assert found(run("query", url, "from orders", "-o", "json", "--partial"))["o4"] == {
        "state": "new"
    }
    assert len(run("query", url, "from raw.orders", "-o", "json", "--partial").lines) == 13


def test_raw_begins_again_if_files_are_removed(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prune may run beside it."""
    before = run("query", url, "from raw.orders", "-o", "json").lines
    real, failures = ClusterLog.changes, iter([True])

    def changes(
        self: ClusterLog, maps: Any = None, scope: Scope | None = None, **options: Any
    ) -> Iterator[EntryBatch]:
        for each in real(self, maps, scope or Scope(), **options):
            yield each
            if scope is not None and scope.covered and next(failures, False):
                raise NotFound("removed", "x.wal")

    monkeypatch.setattr(ClusterLog, "changes", changes)
    assert run("query", url, "from raw.orders", "-o", "json").lines == before
    assert next(failures, None) is None


def test_values_of_members_are_decoded(run: Run, tmp_path: Path) -> None:
    """JSON and text; what Java alone can read has its class and bytes."""
    service = SerializationServiceV1(Config())

    def data(value: Any) -> bytes:
        return bytes(service.to_data(value).buffer)

    values = {"json": data(HazelcastJsonValue('{"n": 1}')), "text": data("Grüße"), "java": b"??"}
    store = open_store(tmp_path.as_uri())
    log = node(store)
    append(
        log,
        *(
            ("m", data(name), "java.lang.String", value, "a.B", False, 1, 0, 7, (1, 1, 1, number))
            for number, (name, value) in enumerate(values.items())
        ),
    )
    log.close()
    shown = {"json": {"n": 1}, "text": "Grüße", "java": {"class": "a.B", "hex": "3f3f"}}
    for view in ("m", "raw.m"):
        assert found(run("query", tmp_path, f"from {view}", "-o", "json")) == shown


def test_an_encrypted_log_is_asked_with_its_keys(run: Run, tmp_path: Path) -> None:
    keys, place = key_file(tmp_path, "a"), tmp_path / "log"
    with imap_wal.open(place.as_uri(), encryption_keys=keys) as store:
        store.map("m")["archived"] = 1
        store.archive()
        store.map("m")["in a segment"] = 2
    given = ("--encryption-keys", keys)
    ended = run(*given, "query", place, "from m", "-o", "json")
    assert found(ended) == {"archived": 1, "in a segment": 2}
    assert len(run(*given, "query", place, "from raw.m", "-o", "json").lines) == 2
    assert run("query", place, "from m").code == 1


def test_a_dropped_map_is_known_and_empty(run: Run, url: str) -> None:
    before = run("query", url, "from raw.orders", "-o", "json").lines
    assert run("drop", url, "--map", "orders", "--yes").code == 0
    assert found(run("query", url, "from orders", "-o", "json")) == {}
    assert len(run("query", url, "from raw.orders", "-o", "json").lines) == len(before), (
        "until its files are pruned"
    )


def test_clusters_with_the_same_map_are_distinguished(run: Run, tmp_path: Path) -> None:
    for cluster in ("eu", "us"):
        with imap_wal.open(tmp_path.as_uri(), cluster=cluster, node="n1") as store:
            store.map("m")["k"] = cluster
    sql = "select cluster, value_json from {} order by cluster"
    for view in ("m", "raw.m"):
        rows = run("query", tmp_path, sql.format(view), "-o", "json").lines
        assert rows == [{"cluster": name, "value_json": name} for name in ("eu", "us")]
    assert len(run("query", tmp_path, "from m", "-o", "json", "--cluster", "eu").lines) == 1
