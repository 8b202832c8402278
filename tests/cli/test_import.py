"""`imap-wal import`: what other libraries have stored becomes maps, all of it or nothing."""

from __future__ import annotations

import dbm.dumb
import os
import pickle
import shelve
import signal
import sqlite3
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import imap_wal
from imap_wal.retention import backfill
from rewrite_cli.commands.copies import import_
from rewrite_cli.sources import pickles
from rewrite_cli.sources.shelf import Shelf
from rewrite_cli.sources.source import Unreadable
from tests.cli.conftest import Run
from tests.kit.effort import every, thorough

KEEPS: dict[str, Any] = {
    "none": None,
    "numbers": [1, True, 1.5, -(2**63)],
    "text": "é",
    "bytes": b"",
    "tuple": (1, (2,)),
    "sets": [{1, 2}, frozenset({b"x"})],
    "times": [datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1), time(1), timedelta(1)],
    "zones": [
        datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Paris")),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    ],
    "decimal": Decimal("1.50"),
    "uuid": UUID(int=5),
    "dicts": [OrderedDict(a=1), Counter("aab"), defaultdict(list, {1: [2]})],
}


class Other:
    """A class that the default serializer does not keep."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Other) and other.number == self.number


class Runs:
    """A pickle of this runs a command when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def shelf_of(path: Path, entries: dict[str, Any], protocol: int = 4) -> Path:
    """A shelf in a file of dbm.sqlite3, as Python 3.13 makes it."""
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS Dict (key BLOB UNIQUE NOT NULL, value BLOB NOT NULL)"
        )
        database.executemany(
            "INSERT INTO Dict VALUES (?, ?)",
            [(key.encode(), pickle.dumps(value, protocol)) for key, value in entries.items()],
        )
    database.close()
    return path


def maps(log: Path, **options: Any) -> dict[str, dict[Any, Any]]:
    with suppress(imap_wal.NoSuchLog), imap_wal.open(log, read_only=True) as store:
        return {name: dict(store.map(name, **options).items()) for name in store.maps()}
    return {}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("protocol", range(6))
def test_a_shelf_of_any_protocol_becomes_a_map(run: Run, tmp_path: Path, protocol: int) -> None:
    name = tmp_path / "old" / "cities"
    name.parent.mkdir()

    with shelve.Shelf(dbm.dumb.open(str(name), "c"), protocol) as old:  # type: ignore[arg-type]
        old.update(KEEPS)
    before = files(name.parent)
    if protocol != 4:  # the command itself takes a tenth of a second
        assert {
            key: pickles.load_safely(pickle.dumps(value, protocol)) for key, value in KEEPS.items()
        } == KEEPS
        return
    ended = run("import", "shelve", name, tmp_path / "log", "-o", "json")
    assert ended.code == 0, ended.err
    assert ended.json["maps"] == [
        {"map": "cities", "imported": len(KEEPS), "expired": 0, "refused": 0}
    ]
    assert maps(tmp_path / "log") == {"cities": KEEPS}
    assert files(name.parent) == before


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
        | st.frozensets(st.integers(0, 99), max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES, st.integers(0, 5))
def test_what_shelve_holds_is_read_back_equal(value: Any, protocol: int) -> None:
    loaded = pickles.load_safely(pickle.dumps(value, protocol))
    assert loaded == value
    serializer = imap_wal.MsgpackSerializer()
    assert serializer.load(serializer.dump(loaded)) == value


@given(st.binary(max_size=60))
def test_bytes_that_are_not_a_pickle_only_raise(data: bytes) -> None:
    for start in (b"", b"\x80\x04", b"cos\nsystem\n", b"cbuiltins\nset\n"):
        with suppress(Exception):
            pickles.load_safely(start + data)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_runs_nothing(
    run: Run, tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the entries before it, some are written already, and are not published."""
    monkeypatch.setattr(import_, "BATCH_ENTRIES", 1)
    ran = tmp_path / "ran"
    old = shelf_of(tmp_path / "old.db", {"good": 1, "too": 2, "bad": Runs(ran)}, protocol)
    ended = run("import", "shelve", old, tmp_path / "log")
    assert ended.code == 1
    assert "refused: old[bad" in ended.err or "old['bad']: it needs the class" in ended.err
    assert "system" in ended.err
    assert not ran.exists()
    assert maps(tmp_path / "log") == {}


@pytest.mark.parametrize(
    "data",
    [
        b"c_codecs\nencode\n(Vx\nVzlib\ntR.",
        b"cbuiltins\ngetattr\n(cuuid\nUUID\nV__init__\ntR.",
        b"ccopyreg\n_reconstructor\n(cdecimal\nDecimal\ncbuiltins\nobject\nNtR.",
        b"cbuiltins\nint\n(V9\ntR.",
        b"cbuiltins\nbytes\n(I1000000000000\ntR.",
        b"cuuid\nUUID\n(N}Vbytes\nI1\nstb.",  # would change the class for all that follow
        b"cbuiltins\nset\n(N}Vadd\nI1\nstb.",
        b"c_codecs\nencode\n(N}Vx\nI1\nstb.",
        b"cdatetime\ndatetime\n(N}Vnow\nI1\nstb.",
    ],
)
def test_a_pickle_reaches_no_other_function(data: bytes) -> None:
    before = dict(vars(UUID))
    with pytest.raises(Exception) as raised:
        pickles.load_safely(data)
    assert not isinstance(raised.value, AssertionError)
    assert dict(vars(UUID)) == before


def test_a_small_pickle_of_a_huge_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "ITEMS_MAX", 100_000)
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(Unreadable, match="too large"):
        pickles.load_safely(pickle.dumps(value))


def test_refused_entries_are_named_and_others_imported_if_asked(run: Run, tmp_path: Path) -> None:
    old = shelf_of(tmp_path / "old.db", {"a": 1, "b": [Other(1)], "c": 2**70})
    ended = run("import", "shelve", old, tmp_path / "log", "--skip-refused", "-o", "json")
    assert ended.code == 3
    assert ended.json["maps"] == [{"map": "old", "imported": 1, "expired": 0, "refused": 2}]
    reasons = {refused["key"]: refused["reason"] for refused in ended.json["refused"]}
    assert reasons["'b'"].endswith(f"{Other.__module__}.Other")
    assert "beyond 64 bits" in reasons["'c'"]
    assert maps(tmp_path / "log") == {"old": {"a": 1}}


@pytest.mark.parametrize("skip", [[], ["--skip-refused"]])
def test_an_import_of_nothing_writes_nothing(run: Run, tmp_path: Path, skip: list[str]) -> None:
    """One entry is refused without `--skip-refused`, or every entry with it. Such an import
    published two manifests."""
    values = {"b": Other(1)} if skip else {"a": 1, "b": Other(1)}
    old, log = shelf_of(tmp_path / "old.db", values), tmp_path / "log"
    assert run("import", "shelve", old, log, *skip).code == (3 if skip else 1)
    assert not log.exists()
    with imap_wal.open(log) as store:
        store.map("m")["x"] = 1
    before = files(log)
    run("import", "shelve", old, log, *skip)
    assert files(log) == before


def test_a_source_that_changes_meanwhile_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read twice: first to prove all entries, then to import them."""
    name, log = str(tmp_path / "old"), tmp_path / "log"
    with shelve.Shelf(dbm.dumb.open(name, "c")) as old:  # type: ignore[arg-type]
        old["a"] = 1
    begin = backfill.begin

    def changed(*args: Any) -> Any:
        monkeypatch.setattr(Shelf, "_pairs", lambda shelf: iter(()))
        return begin(*args)

    monkeypatch.setattr(backfill, "begin", changed)
    ended = run("import", "shelve", name, log)
    assert ended.code == 1
    assert "the source changed while it was read; nothing was imported" in ended.err
    assert maps(log) == {}


def test_trusted_pickles_are_stored_as_pickles_if_asked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, Other.__module__, sys.modules[__name__])
    old = shelf_of(tmp_path / "old.db", {"a": 1, "b": Other(5)})
    ended = run("import", "shelve", old, tmp_path / "log", "--trust-pickle")
    assert ended.code == 1
    assert "old['b']: it cannot be stored: a Other" in ended.err
    ended = run(
        "import", "shelve", old, tmp_path / "log", "--trust-pickle", "--serializer", "pickle"
    )
    assert ended.code == 0, ended.err
    assert maps(tmp_path / "log", serializer="pickle") == {"old": {"a": 1, "b": Other(5)}}


def test_a_second_import_says_that_the_first_ended(run: Run, tmp_path: Path) -> None:
    old, log = shelf_of(tmp_path / "old.db", {"a": 1}), tmp_path / "log"
    with imap_wal.open(log) as store:
        store.map("old").update({"mine": 2, "a": 0})
    ended = run("import", "shelve", old, log)
    assert ended.code == 1
    assert "'old' has entries already" in ended.err
    assert run("import", "shelve", old, log, "--add", "--dry-run").code == 0
    assert maps(log) == {"old": {"mine": 2, "a": 0}}
    assert run("import", "shelve", old, log, "--add").code == 0
    assert maps(log) == {"old": {"mine": 2, "a": 1}}
    ended = run("import", "shelve", old, log, "--add", "--serializer", "pickle")
    assert ended.code == 2
    assert "class" in ended.err


def test_an_open_store_refuses_an_import(run: Run, tmp_path: Path) -> None:
    old, log = shelf_of(tmp_path / "old.db", {"a": 1}), tmp_path / "log"
    with imap_wal.open(log) as store:
        store.map("m")["x"] = 1
        assert run("import", "shelve", old, log).code == 4
    assert maps(log) == {"m": {"x": 1}}


def test_tables_of_sqlitedict_become_maps(run: Run, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "d.sqlite") as database:
        for table in ('"unnamed"', '"a ""b"""'):  # as sqlitedict 2.1 makes them
            database.execute(f"CREATE TABLE {table} (key TEXT PRIMARY KEY, value BLOB)")
            database.executemany(
                f"INSERT INTO {table} VALUES (?, ?)",
                [(key, pickle.dumps(value, 5)) for key, value in KEEPS.items()],
            )
        database.execute("CREATE TABLE other (id INTEGER, key TEXT)")
        database.execute("CREATE VIEW look AS SELECT 1 AS key, 2 AS value")
    database.close()
    before = files(tmp_path)
    assert run("import", "sqlitedict", "d.sqlite", "log", "--map", "x").code == 2
    assert files(tmp_path) == before
    ended = run("import", "sqlitedict", "d.sqlite", "log", "--map", "x", "--table", "unnamed")
    assert ended.code == 0, ended.err
    assert run("import", "sqlitedict", "d.sqlite", "log").code == 0
    assert maps(tmp_path / "log") == {"x": KEEPS, "unnamed": KEEPS, 'a "b"': KEEPS}


@pytest.mark.parametrize("shards", [0, 3])
def test_a_cache_of_diskcache_becomes_a_map(run: Run, tmp_path: Path, shards: int) -> None:
    diskcache = pytest.importorskip("diskcache")
    folder = tmp_path / "pages"
    more = {"file": b"x" * 50_000, "text file": "é" * 50_000, "pickle file": list(range(50_000))}
    keys = {5: "int", 1.5: "float", b"b": "bytes", (1, "x"): "tuple"}
    cache = (
        diskcache.FanoutCache(folder, shards=shards, cull_limit=0)
        if shards
        else diskcache.Cache(folder, cull_limit=0)
    )
    for key, value in {**KEEPS, **more, **keys}.items():
        cache.set(key, value, tag="t" if key == "text" else None)
    cache.set("gone", 1, expire=-1)
    cache.set("later", 1, expire=1000)
    if shards:
        before = {}  # the connection is still open: its entries are in the log of SQLite
    else:
        cache.close()
        before = files(folder)
    ended = run("import", "diskcache", folder, "log", "-o", "json")
    cache.close()
    assert ended.code == 0, ended.err
    assert not before or files(folder) == before
    assert ended.json["lost"] == {"tags": 1}
    assert ended.json["maps"][0]["expired"] == 1
    with imap_wal.open(tmp_path / "log") as store:
        pages = store.map("pages")
        ttl = pages.ttl("later")
        assert ttl is not None and 900 < ttl <= 1000
        assert dict(pages.items()) == {**KEEPS, **more, **keys, "later": 1}


def test_keys_that_become_equal_are_refused(run: Run, tmp_path: Path) -> None:
    diskcache = pytest.importorskip("diskcache")
    with diskcache.Cache(tmp_path / "c") as cache:
        cache[True], cache[1] = "a", "b"
    ended = run("import", "diskcache", "c", "log")
    assert ended.code == 1
    assert "its key equals another one" in ended.err


def test_json_of_diskcache_is_read(run: Run, tmp_path: Path) -> None:
    diskcache = pytest.importorskip("diskcache")
    with diskcache.Cache(tmp_path / "c", disk=diskcache.JSONDisk) as cache:
        cache["a"] = {"b": [1, None]}
    assert run("import", "diskcache", "c", "log").code == 0
    assert maps(tmp_path / "log") == {"c": {"a": {"b": [1, None]}}}


def test_a_file_outside_a_cache_is_not_read(run: Run, tmp_path: Path) -> None:
    diskcache = pytest.importorskip("diskcache")
    (tmp_path / "secret").write_bytes(b"secret")
    with diskcache.Cache(tmp_path / "c") as cache:
        cache["a"] = b"x" * 50_000
    with sqlite3.connect(tmp_path / "c/cache.db") as database:
        database.execute("UPDATE Cache SET filename = '../secret'")
    database.close()
    ended = run("import", "diskcache", "c", "log")
    assert ended.code == 1
    assert "outside the folder" in ended.err


@pytest.mark.parametrize("form", [form for form in import_.FORMS if form != "seatunnel"])
def test_a_damaged_source_is_a_clear_error(run: Run, tmp_path: Path, form: str) -> None:
    source = tmp_path / ("cache.db" if form == "diskcache" else "x.db")
    with sqlite3.connect(source) as database:
        database.execute("CREATE TABLE Dict (key, value)")
        database.executemany("INSERT INTO Dict VALUES (?, ?)", [("k", b"v" * 9000)] * 50)
        database.execute("CREATE TABLE Cache (raw, size)")
    database.close()
    data = source.read_bytes()
    source.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    ended = run("import", form, tmp_path if form == "diskcache" else source, tmp_path / "new/log")
    assert ended.code == 1
    assert "cannot be read" in ended.err or "no table" in ended.err
    assert "nothing was imported" in ended.err or "no table" in ended.err
    assert "bug" not in ended.err


def test_a_missing_or_foreign_source_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("no database of any kind")
    for form in import_.FORMS:
        for name in ("absent", "text"):
            ended = run("import", form, name, "log")
            assert ended.code == 1
            assert name in ended.err
            assert not (tmp_path / "log").exists()
    monkeypatch.setattr(dbm, "whichdb", lambda path: "dbm.gnu_absent")
    assert "which this Python does not have" in run("import", "shelve", "text", "log").err


def test_an_entry_that_cannot_be_decoded_is_refused(run: Run, tmp_path: Path) -> None:
    old = shelf_of(tmp_path / "old.db", {"a": 1})
    with sqlite3.connect(old) as database:
        database.execute("INSERT INTO Dict VALUES (?, ?)", (b"\xff", pickle.dumps(1)))
        database.execute("INSERT INTO Dict VALUES (?, ?)", (b"cut", pickle.dumps("text")[:-4]))
    database.close()
    ended = run("import", "shelve", old, "log", "-o", "json", "--dry-run")
    assert ended.code == 3
    assert ended.json["maps"] == [{"map": "old", "imported": 1, "expired": 0, "refused": 2}]
    assert not (tmp_path / "log").exists()


KILLED = """
import os, signal, sys
from imap_wal.retention import {module} as module
def killed(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
module.{name} = killed
from rewrite_cli.cli import main
main(["import", "shelve", sys.argv[1], sys.argv[2]])
"""


@every(2)
@pytest.mark.parametrize(
    ("module", "name"), [("backfill_rows", "write_sorted"), ("backfill", "publish")]
)
def test_a_killed_import_leaves_nothing_and_can_be_repeated(
    run: Run, tmp_path: Path, module: str, name: str
) -> None:
    old, log = shelf_of(tmp_path / "old.db", dict(KEEPS)), tmp_path / "log"
    with imap_wal.open(log) as store:
        store.map("m")["x"] = 1
    code = KILLED.format(module=module, name=name)
    child = subprocess.run([sys.executable, "-c", code, old, log], cwd=Path(__file__).parents[2])
    assert child.returncode == -signal.SIGKILL
    assert maps(log) == {"m": {"x": 1}}
    ended = run("import", "shelve", old, log)
    assert ended.code == 0
    assert "has not ended" in ended.err
    assert maps(log) == {"m": {"x": 1}, "old": KEEPS}
    with imap_wal.open(log) as store:
        store.map("old")["new"] = 1
        store.compact()
    assert maps(log)["old"] == {**KEEPS, "new": 1}


def test_an_imported_log_has_no_parquet_files(run: Run, tmp_path: Path) -> None:
    assert run("import", "shelve", shelf_of(tmp_path / "old.db", {"a": 1}), "log").code == 0
    assert not list((tmp_path / "log").rglob("*.parquet"))
    assert not list((tmp_path / "log").rglob("backfill-*"))


MEASURED = """
import sys
from imap_wal.rewrite.report import memory_max_bytes
from rewrite_cli.cli import group
group.main(["import", "shelve", sys.argv[1], sys.argv[2]], standalone_mode=False)
print(memory_max_bytes() // 2**20)
"""


@thorough
def test_an_import_of_many_entries_takes_bounded_memory(tmp_path: Path) -> None:
    """100 MB in 100,000 entries; the libraries alone take half of the limit."""
    value = "x" * 1000
    old = shelf_of(tmp_path / "old.db", {f"key {number}": value for number in range(100_000)})
    words = [sys.executable, "-c", MEASURED, str(old), str(tmp_path / "log")]
    ended = subprocess.run(
        words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    *_, row, megabytes = ended.stdout.splitlines()
    assert row.split() == ["old", "100,000", "0", "0"]
    assert int(megabytes) < 350
