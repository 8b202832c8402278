"""Settings that users of RocksDB know, by name and meaning."""

from __future__ import annotations

import asyncio
import math
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.agent.config import AgentConfig
from imap_wal.errors import InvalidSetting
from imap_wal.settings import Settings
from storage_backends.memory import MemoryStore
from tests.support import FakeClock, contents, copy_files, embedded, eventually, segments

# ---- their names ---------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs/settings.md"


def test_rocksdb_settings_have_their_names_and_documented_defaults() -> None:
    """The settings that RocksDB has too have its names, and the defaults that the page names."""
    lines = [
        line
        for line in PAGE.read_text(encoding="utf-8")
        .split("## Those that users of RocksDB know")[1]
        .split("\n## ")[0]
        .splitlines()
        if "|" in line
    ]
    said = {
        name.strip(" `"): default.strip(" `")
        for _, name, default, *_ in (line.split("|") for line in lines[2:])
    }
    assert said.keys() == {
        "wal_dir",
        "wal_ttl_seconds",
        "wal_size_limit_mb",
        "max_total_wal_size",
        "manual_wal_flush",
        "disable_wal",
        "wal_filter",
        "avoid_flush_during_recovery",
        "recovery_mode",
    }
    defaults = {field.name: field.default for field in fields(imap_wal.Settings)}
    defaults |= {
        name: parameter.default for name, parameter in signature(imap_wal.open).parameters.items()
    }
    defaults["disable_wal"] = signature(imap_wal.Store.map).parameters["disable_wal"].default
    words: dict[Any, str] = {"": "the root", None: "none"}
    assert said == {
        name: words.get(defaults[name], str(defaults[name]).lower()) for name in said
    } | {"max_total_wal_size": "0 (bytes)"}
    assert defaults["max_total_wal_size"] == 0


# ---- manual_wal_flush ----------------------------------------------------------------------------


def test_manual_wal_flush_logs_changes_only_when_flushed(
    memory: MemoryStore,
) -> None:
    """With `manual_wal_flush`, changes reach the log when they are flushed, and not before."""
    store = embedded(memory, manual_wal_flush=True)
    items = store.map("m")
    items["a"] = 1
    items.update({"b": 2, "c": 3})
    del items["b"]
    assert dict(items) == {"a": 1, "c": 3}, "memory has it at once"
    assert contents(memory) == {}
    store.flush_wal(sync=False)
    assert contents(memory) == {"a": 1, "c": 3}
    syncs = store.statistics.commits.syncs
    items["d"] = 4
    store.flush_wal()
    assert store.statistics.commits.syncs > syncs
    items["e"] = 5
    store.sync()
    assert contents(memory) == {"a": 1, "c": 3, "d": 4, "e": 5}
    items["f"] = 6
    store.close()
    assert contents(memory)["f"] == 6


def test_with_manual_wal_flush_a_full_ring_is_flushed(memory: MemoryStore) -> None:
    with embedded(memory, manual_wal_flush=True, ring_slots=8) as store:
        for number in range(20):
            store.map("m")[number] = number
        assert len(contents(memory)) >= 8


def test_manual_wal_flush_from_asyncio(tmp_path: Path) -> None:
    async def run() -> None:
        async with imap_wal.aopen(tmp_path.as_uri(), node="n", manual_wal_flush=True) as store:
            await store.map("m").set("a", 1)
            await store.flush_wal()
            assert store.statistics.commits.records == 1

    asyncio.run(run())


def test_an_agent_refuses_manual_wal_flush() -> None:
    with pytest.raises(InvalidSetting, match="manual_wal_flush"):
        AgentConfig.from_mapping({"url": "memory://x", "log": {"manual_wal_flush": True}})


# ---- disable_wal ---------------------------------------------------------------------------------


def test_map_with_disable_wal_ends_with_the_store(
    memory: MemoryStore,
) -> None:
    """A map with `disable_wal` is only in memory, and ends with the store."""
    with embedded(memory) as store:
        cache, kept = store.map("cache", disable_wal=True), store.map("kept")
        cache["a"] = 1
        cache.update({"b": 2, "c": 3})
        del cache["b"]
        kept["k"] = 1
        assert dict(cache) == {"a": 1, "c": 3}
        assert store.statistics.commits.records == 1
    with embedded(memory) as store:
        assert store.maps() == ["kept"]
        assert dict(store.map("cache", disable_wal=True)) == {}


def test_a_map_is_logged_or_not_and_never_both(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("kept")["a"] = 1
        store.map("cache", disable_wal=True)
        with pytest.raises(InvalidSetting, match="in the log"):
            store.map("kept", disable_wal=True)
        with pytest.raises(InvalidSetting, match="not in the log"):
            store.map("cache")
    with embedded(memory) as store, pytest.raises(InvalidSetting, match="imap-wal drop"):
        store.map("kept", disable_wal=True)


# ---- rotation and archive ------------------------------------------------------------------------


def test_a_segment_is_sealed_when_it_is_old(tmp_path: Path) -> None:
    clock = FakeClock()
    with imap_wal.open(tmp_path.as_uri(), node="n", clock=clock, rotate_interval_s=60) as store:
        store.map("m")["a"] = 1
        clock.advance(59)
        store.committer.rotate_if_due()
        assert store.statistics.commits.rotations == 0
        clock.advance(1)
        store.committer.rotate_if_due()
        store.committer.rotate_if_due()
        assert store.statistics.commits.rotations == 1, "an empty log has nothing to seal"
    with imap_wal.open(tmp_path.as_uri(), node="n", rotate_interval_s=0.02) as store:
        store.map("m")["b"] = 2
        eventually(lambda: store.statistics.commits.rotations == 1, "maintenance seals by time")


@pytest.mark.parametrize("avoid", [False, True])
def test_earlier_wal_is_archived_at_start_unless_avoided(memory: MemoryStore, avoid: bool) -> None:
    """Segments of an earlier run are archived at the start, except with
    `avoid_flush_during_recovery`."""
    first = embedded(memory)
    first.map("m").update({number: number for number in range(100)})
    left = copy_files(memory)
    with embedded(left, max_total_wal_size=1 << 30, avoid_flush_during_recovery=avoid) as store:
        if avoid:
            store.map("m")["more"] = 1
            store.writer.maintenance._full.wake.wait(0.1)
            assert segments(left)
        else:
            eventually(lambda: not segments(left), "the archive of what was left")
        assert len(store.map("m")) == 100 + avoid


def test_max_total_wal_size_counts_what_an_earlier_run_left(memory: MemoryStore) -> None:
    first = embedded(memory, segment_bytes=1000)
    for number in range(30):
        first.map("m")[number] = "v" * 50
    left = copy_files(memory)
    before = len(segments(left))
    assert before > 2
    with embedded(
        left, segment_bytes=1000, max_total_wal_size=before * 1000, avoid_flush_during_recovery=True
    ) as store:
        for number in range(30, 50):
            store.map("m")[number] = "v" * 50
        eventually(lambda: len(segments(left)) < before, "an archive by size")
    assert len(contents(left)) == 50


NUMBERS = [field.name for field in fields(Settings) if field.type in ("int", "float")]


@pytest.mark.parametrize("name", NUMBERS)
def test_an_impossible_number_is_refused_at_the_open_and_named(tmp_path: Path, name: str) -> None:
    """`archive_interval_s=nan` was once accepted, and nothing was archived; a wait for 1e300
    seconds failed in a background thread."""
    (kind,) = [field.type for field in fields(Settings) if field.name == name]
    values: list[Any] = [-1, 10**30]
    values += [math.nan, math.inf, -math.inf, 1e300, 2.0**40] if kind == "float" else []
    for value in values:
        for opened in (imap_wal.open, imap_wal.log.create):
            with pytest.raises(InvalidSetting, match=rf"^{name} is .*; it takes"):
                opened(tmp_path / "log", **{name: value})
        with pytest.raises(InvalidSetting, match=f"{name} is"):
            AgentConfig.from_mapping({"url": str(tmp_path), "log": {name: value}})
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 1e300, "1"])
def test_a_tail_with_an_impossible_poll_time_is_refused(tmp_path: Path, value: Any) -> None:
    with imap_wal.log.create(tmp_path) as log, pytest.raises(InvalidSetting, match="poll_s is"):
        next(log.tail(poll_s=value))


def test_an_agents_clock_offset_is_a_possible_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="clock_offset_ms is"):
        AgentConfig.from_mapping({"url": str(tmp_path), "clock_offset_ms": 10**30})


@pytest.mark.parametrize("scratch", ["none", "file", "", 5])
def test_scratch_that_is_no_folder_is_refused_at_open(tmp_path: Path, scratch: Any) -> None:
    """A scratch that is no folder is refused at the open. It used to fail in a restore that did not
    fit in memory."""
    (tmp_path / "file").write_text("x")
    given = tmp_path / scratch if scratch in ("none", "file") else scratch
    for opened in (imap_wal.open, imap_wal.log.create):
        with pytest.raises(
            InvalidSetting, match=r"^scratch is .*(there is no such folder|it takes text)"
        ):
            opened(tmp_path / "log", scratch=given)
    with pytest.raises(InvalidSetting, match="scratch is"):
        AgentConfig.from_mapping(
            {"url": str(tmp_path), "log": {"scratch": str(given) if scratch != 5 else 5}}
        )
    assert not (tmp_path / "log").exists()
    given = str(tmp_path)
    assert Settings(scratch=given).scratch == tmp_path  # type: ignore[arg-type]
