"""The table of docs/durability.md, cell by cell: what an open does with damage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imap_wal.errors import LogError
from imap_wal.settings import RecoveryMode
from storage_backends.memory import MemoryStore
from tests.kit.damages import (
    ALL,
    DAMAGES,
    Damage,
    closed,
    entries,
    flip,
    history,
    lost_files,
    newer,
)
from tests.support import copy_files, node_log

PAGE = Path(__file__).parents[2] / "docs/durability.md"


def unsynced(store: MemoryStore) -> None:
    """Six frames, none of them known to be synced; the third is damaged."""
    for file in store.list(""):
        store.delete(file.path)
    other = copy_files(MemoryStore("nothing"))
    history(other, segments_=1, frames=6, sync=False)
    for file in other.list(""):
        store.create(file.path, other.read(file.path))
    flip(store, 0, 2)


def those(wanted: Callable[[str], bool]) -> list[tuple[Damage, list[int]]]:
    """The kinds of damage with these names, each with the entries that are left."""
    return [(damage, kept) for name, (damage, _, kept, _) in DAMAGES.items() if wanted(name)]


# The first words of a line of the page → the damage to the log, and the entries that are left if
# the open does not refuse.
LINES: dict[str, list[tuple[Damage, list[int]]]] = {
    "a clean stop": [(closed, ALL)],
    "an incomplete last commit": those(lambda name: DAMAGES[name][1]),
    "damage above the last synced position": [(unsynced, [0, 1])],
    "damage below the last synced position": those(
        lambda name: not DAMAGES[name][1] and ("flipped" in name or "bytes" in name)
    ),
    "a missing segment; a sealed segment that lost its end; a segment of another log": those(
        lambda name: "missing" in name or "segment cut" in name
    ),
    "a segment of a newer format": [(newer, [])],
}


def table() -> Iterator[tuple[str, str, str]]:
    """(line, mode, the page's text)."""
    rows = [
        re.split(r"\s*\|\s*", line.strip("| "))
        for line in PAGE.read_text(encoding="utf-8").split("## What an open does")[1].splitlines()
        if "|" in line
    ]
    (_, *heads), _, *lines = rows
    for line, *cells in lines:
        yield from (
            (line, re.findall(r"`([\w-]+)`", head)[0], cell)
            for head, cell in zip(heads, cells, strict=True)
        )


def test_recovery_page_lists_every_mode_and_damage() -> None:
    """A column for each mode of an open, and a line for each kind of damage."""
    assert {mode for _, mode, _ in table()} == set(RecoveryMode)
    assert len({line for line, *_ in table()}) == len(LINES)
    assert all(any(line.startswith(begin) for line, *_ in table()) for begin in LINES)
    tried = [damage for cases in LINES.values() for damage, _ in cases]
    assert all(damage in tried for damage, *_ in DAMAGES.values())


@pytest.mark.parametrize(("line", "mode", "said"), list(table()))
def test_an_open_does_with_damage_what_the_page_says(
    memory: MemoryStore, line: str, mode: str, said: str
) -> None:
    (cases,) = [cases for begin, cases in LINES.items() if line.startswith(begin)]
    history(memory)
    for damage, kept in cases:
        left = copy_files(memory)
        damage(left)
        if said == "refuses":
            with pytest.raises(LogError):
                node_log(left, recovery_mode=mode)
            assert not lost_files(left)
            continue
        recovery = node_log(left, recovery_mode=mode).recovery
        assert entries(left) == kept
        assert (recovery.lost is not None) == ("put aside" in said) == bool(lost_files(left))
        assert bool(recovery.torn_bytes) == said.startswith(("cut off", "given up"))
        if said.startswith("opens"):
            assert (recovery.frames == len(ALL)) == ("scan" in said)
