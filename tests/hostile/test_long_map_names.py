"""Maps whose encoded names are too long for a folder of a file system or an object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.errors import InvalidSetting
from imap_wal.names import MAP_COMPONENT_BYTES_MAX, check_map_name, map_component, map_of
from rewrite_cli.cli import group

NAMES = ["ä" * 60, "漢" * 300, "x" * 201, "x" * 1024, "ä" * 60 + "b"]


def run(*words: str) -> str:
    ended = CliRunner().invoke(group, words)
    assert ended.exit_code == 0, ended.output
    return ended.output


def maps(url: str) -> dict[str, dict[str, int]]:
    with imap_wal.open(url) as store:
        return {name: dict(store.map(name).items()) for name in NAMES}


def test_a_component_is_short_and_unique_for_each_name() -> None:
    """A name that is short enough is its own component."""
    components = {map_component(name) for name in [*NAMES, "plain"]}
    assert len(components) == len(NAMES) + 1
    assert all(len(each.encode()) <= MAP_COMPONENT_BYTES_MAX for each in components)
    for name in NAMES:
        assert map_of(map_component(name), ["other", *NAMES]) == name
        assert map_of(map_component(name), ["other"]) == ""
    assert map_component("x" * 200) == "x" * 200


@pytest.mark.parametrize("name", ["x" * 1025, "漢" * 342, "", "\ud800"])
def test_an_impossible_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting):
        check_map_name(name)


def test_archive_rewrite_prune_restore_and_drop_take_long_names(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    expected = {name: {"a": number, "b": number} for number, name in enumerate(NAMES)}
    with imap_wal.open(url) as store:
        for number, name in enumerate(NAMES):
            store.map(name).put("a", number)
            store.map(name).put("b", 0)
    run("archive", url)
    assert len(list((tmp_path / "log").rglob("archive/*/*.parquet"))) == len(NAMES)
    with imap_wal.open(url) as store:
        for number, name in enumerate(NAMES):
            store.map(name).put("b", number)
    run("rewrite", url)
    run("rewrite", url)
    run("prune", url, "--yes")
    assert maps(url) == expected
    assert run("verify", url)
    run("drop", url, "--map", NAMES[0], "--yes")
    assert maps(url) == {**expected, NAMES[0]: {}}
