"""Files of chosen maps have keys and values in readable form beside the bytes. DuckDB and pandas
read them without imap-wal, and every reader of the log takes them as other files."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

import imap_wal
from imap_wal import decoder, encoder
from imap_wal.context import Context, open_context
from imap_wal.entry import DELETED, KEY_CLASS
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.parquet import decoded_columns
from imap_wal.parquet.columns import to_batch
from imap_wal.parquet.decoded_columns import DecodedColumns
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.schemas import schemas_of
from imap_wal.rewrite import part_writer, plan
from imap_wal.rewrite.columns import merge
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends import NotFound, open_store
from tests import histories
from tests.cli.conftest import Run
from tests.encrypted import key_file
from tests.histories import put
from tests.kit.effort import share, thorough
from tests.kit.repairs import repair
from tests.kit.row_engine import ComparedEngine
from tests.kit.task_engine import ComparedTasks, TaskEngine

_numbers = itertools.count()


def opened(url: str, **options: Any) -> imap_wal.Store:
    return imap_wal.open(url, preallocate=False, auto_rewrite_percentage=0, **options)


def files(folder: Path, kind: str) -> list[str]:
    return sorted(str(file) for file in folder.rglob("*.parquet") if f"/{kind}/" in str(file))


def done(run: Run, *words: Any) -> Any:
    ended = run(*words)
    assert ended.code == 0, ended.err
    return ended


@pytest.fixture
def filled(tmp_path: Path, run: Run) -> tuple[str, dict[str, Any]]:
    """The URL of a log in which `orders` has decoded columns, and its entries."""
    url, expected = f"file://{tmp_path}/log", dict[str, Any]()
    with opened(url) as store:
        store.map("orders")["before"] = expected["before"] = {"a": "b"}
        store.map("other")["x"] = 1
    done(run, "archive", url)
    assert done(run, "decode", url, "-o", "json").json["clusters"][0]["maps"] == []
    done(run, "decode", url, "--map", "order*")
    with opened(url) as store:
        for number in range(30):
            expected[f"k{number}"] = {"n": number, "tag": "ü", "bytes": b"\x00"}
        store.map("orders").update(expected)
        del store.map("orders")["k7"], expected["k7"]
        store.map("other")["y"] = 2
    done(run, "archive", url)
    return url, expected


def test_duckdb_and_pandas_read_keys_and_values(
    tmp_path: Path, run: Run, filled: tuple[str, dict[str, Any]]
) -> None:
    url, expected = filled
    done(run, "rewrite", url)
    orders = [file for file in files(tmp_path, "snapshot") if "/orders/" in file]
    found = duckdb.execute(
        f"select key_text::json ->> '$', value_json::json ->> 'n' from read_parquet({orders!r}) "
        "where not deleted"
    ).fetchall()
    assert dict(found) == {
        key: None if key == "before" else str(value["n"]) for key, value in expected.items()
    }
    import pandas as pd  # takes too long to import for each collection of tests

    frame = pd.concat([pd.read_parquet(file) for file in orders])
    shown = {json.loads(row.key_text): json.loads(row.value_json) for row in frame.itertuples()}
    assert shown == {key: encoder.plain(value) for key, value in expected.items()}
    having = {
        file: "key_text" in pq.read_schema(file).names
        for kind in ("archive", "snapshot")
        for file in files(tmp_path, kind)
    }
    assert not any(has for file, has in having.items() if "/other/" in file)
    archives = sorted(has for file, has in having.items() if "/archive/orders/" in file)
    assert archives == [False, True], "the first one was written before"


def test_a_tombstone_and_unknown_bytes_are_null(tmp_path: Path, run: Run) -> None:
    url = f"file://{tmp_path}/log"
    with opened(url) as store:
        store.map("m")["a"] = 1
    done(run, "decode", url, "--map", "*")
    with opened(url, serializer=imap_wal.RawSerializer()) as store:
        store.map("raw")[b"\xff"] = b"\x00\xff"
    with opened(url) as store:
        del store.map("m")["a"]
        store.map("m")["long"] = "x" * 2**20
    done(run, "archive", url)
    found = duckdb.execute(
        f"select map, key_text, value_json, deleted from read_parquet({files(tmp_path, 'archive')})"
    ).fetchall()
    assert sorted(found, key=str) == [
        ("m", '"a"', "1", False),
        ("m", '"a"', None, True),
        ("m", '"long"', None, False),
        ("raw", '{"hex": "ff"}', '{"hex": "00ff"}', False),
    ]


@thorough
def test_every_command_reads_such_files(
    tmp_path: Path, run: Run, filled: tuple[str, dict[str, Any]]
) -> None:
    """Beside files without these columns, through rewrites by both engines, backup, repair."""
    url, expected = filled
    chance = random.Random(4)
    for turn in range(6):
        with opened(url) as store:
            orders = store.map("orders")
            for key in chance.sample(range(40), 5):
                orders[f"k{key}"] = expected[f"k{key}"] = {"turn": turn}
        if turn % 2:
            done(run, "archive", url)
        if turn in (2, 4):
            log = ClusterLog(open_context(url), "default", "embedded")
            rewrite(log, TaskEngine() if turn == 2 else ComparedTasks())
            done(run, "prune", url, "--yes")
        assert {
            file["status"] for file in done(run, "verify", url, "-o", "json").json["files"]
        } == {"clean"}
        with opened(url) as store:
            assert dict(store.map("orders")) == expected
            assert dict(store.map("other")) == {"x": 1, "y": 2}
    done(run, "backup", url, f"file://{tmp_path}/backup")
    done(run, "backup-restore", f"file://{tmp_path}/backup", f"file://{tmp_path}/again")
    done(run, "archive", url)
    broken = Path(files(tmp_path / "log", "archive")[-1])
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    repair(run, tmp_path)
    with opened(f"file://{tmp_path}/again") as store:
        assert dict(store.map("orders")) == expected


def test_a_rewrite_begins_again_if_a_segment_vanishes(
    run: Run, filled: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it reads the schemas that the texts need."""
    tries: list[int] = []

    def reading(*_: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise NotFound("it was archived", "a segment")
        return schemas_of(*_)

    monkeypatch.setattr(plan, "schemas_of", reading)
    done(run, "rewrite", filled[0])
    assert len(tries) == 2


def test_without_a_client_library_texts_of_members_are_null(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent may be installed without the library that decodes entries of members."""
    tries: list[int] = []

    def missing(*_: Any) -> Any:
        tries.append(1)
        raise ModuleNotFoundError("install imap-wal[hazelcast]")

    monkeypatch.setattr(decoder.Decoder, "_of_member", missing)
    rows = [put("a", "1", (1, 2, 3, number)) for number in range(5)]
    embedded = put("b", "1", (1, 0, 3, 4))
    packed = (*embedded[:KEY_CLASS], "msgpack", msgpack.packb([1]), "msgpack", *embedded[DELETED:])
    table = pa.Table.from_batches([to_batch([*rows, packed], "n1")])
    added = DecodedColumns(["*"]).added(table)
    assert added["key_text"].to_pylist()[:5] == added["value_json"].to_pylist()[:5] == [None] * 5
    assert added["value_json"].to_pylist()[5] == "[1]"
    assert len(tries) == 1 and [each.message for each in caplog.records] == [
        "readable columns are left empty: install imap-wal[hazelcast]"
    ]


def test_only_stars_and_question_marks_have_a_meaning() -> None:
    columns = DecodedColumns(["a[1]", "b?", "c*", "[x]*"])
    found = {
        name: columns.of(name) is not None
        for name in ("a[1]", "a1", "b", "b1", "c", "cc", "[x]y", "xy", "A[1]")
    }
    assert found == {
        **dict.fromkeys(found, False),
        **dict.fromkeys(("a[1]", "b1", "c", "cc", "[x]y"), True),
    }


def test_a_value_that_breaks_the_decoder_is_null(
    run: Run,
    tmp_path: Path,
    filled: tuple[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rewrite goes on, and the log of a program that wants it names the map."""

    def broken(_: Any) -> str:
        raise RecursionError("too deep")

    monkeypatch.setattr(decoded_columns, "json_of", broken)
    caplog.set_level("DEBUG", "imap_wal.parquet")
    done(run, "rewrite", filled[0])
    table = pq.read_table([file for file in files(tmp_path, "snapshot") if "/orders/" in file])
    assert table["value_json"].null_count == len(table) > table["key_text"].null_count == 0
    assert {each.message for each in caplog.records if each.name == "imap_wal.parquet"} == {
        "a key or a value of map 'orders' cannot be decoded"
    }


def test_maps_can_lose_these_columns_again(
    tmp_path: Path, run: Run, filled: tuple[str, dict[str, Any]]
) -> None:
    url, _ = filled
    planned = done(run, "decode", url, "--none", "--dry-run", "-o", "json").json
    assert planned["dry_run"] and planned["clusters"][0]["maps"] == []
    assert done(run, "decode", url, "-o", "json").json["clusters"][0]["maps"] == ["order*"]
    done(run, "decode", url, "--none")
    done(run, "rewrite", url)
    for file in files(tmp_path, "snapshot"):
        assert "key_text" not in pq.read_schema(file).names


def test_a_map_without_entries_is_named(run: Run, filled: tuple[str, dict[str, Any]]) -> None:
    """It may be written later, so this is no error."""
    url, _ = filled
    for flags in (("--dry-run",), ()):
        ended = run("decode", url, "--map", "nosuch*", "--map", "order*", *flags)
        assert ended.code == 0
        assert "no entries of map 'nosuch*' yet; the columns" in ended.err
    assert done(run, "decode", url, "-o", "json").json["clusters"][0]["maps"] == [
        "nosuch*",
        "order*",
    ]


def test_the_command_needs_no_keys(run: Run, tmp_path: Path) -> None:
    """It changes a manifest. Whether an encrypted segment has the map is not known then."""
    url = f"file://{tmp_path}/log"
    with opened(url, encryption_keys=key_file(tmp_path, "a")) as store:
        store.map("m")["a"] = 1
    ended = done(run, "decode", url, "--map", "n*")
    assert "no entries" not in ended.err


@thorough
def test_encrypted_files_have_encrypted_texts(tmp_path: Path) -> None:
    url, keys = f"file://{tmp_path}/log", key_file(tmp_path, "a")
    with opened(url, encryption_keys=keys) as store:
        store.map("m")["a secret key"] = "a secret value"
    manifests = ClusterManifestLog(Context(open_store(url)), "default/embedded")
    manifests.update(lambda now: replace(now, decoded=("*",)))
    with opened(url, encryption_keys=keys) as store:
        store.map("m")["b"] = 1
        store.compact()
    assert files(tmp_path, "snapshot")
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"a secret" not in file.read_bytes()
    with opened(url, encryption_keys=keys) as store:
        assert dict(store.map("m")) == {"a secret key": "a secret value", "b": 1}


@settings(
    max_examples=share(25),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=histories.steps)
@pytest.mark.parametrize("engine", [ComparedEngine, ComparedTasks])
def test_engines_agree_if_some_files_have_these_columns(
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    engine: Any,
    history: list[tuple[str, int, int, int]],
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(merge, "COLUMN_ROWS", 1)
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 2)
    monkeypatch.setattr(histories, "LocalEngine", engine)
    monkeypatch.setattr(DecodedColumns, "of", lambda self, name: chance.choice([None, self]))
    memory = Settings(preallocate=False, segment_bytes=1 << 20, restore_memory_bytes=4000)
    histories.play_and_maintain(f"decoded-{next(_numbers)}", history, memory)
