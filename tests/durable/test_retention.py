"""`wal_ttl_seconds` and `wal_size_limit_mb`: how long what a snapshot covers stays, and that nothing else ever goes."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.retention import MB, outlived
from rewrite_cli.cli import group
from storage_backends.interface import StoredFile

NOW = 1_763_720_000_000


def file(name: str, age_s: float, size: int = 100) -> StoredFile:
    return StoredFile(name, size, NOW - round(age_s * 1000))


def test_by_age_only_what_is_older_goes() -> None:
    files = [file("a", 10), file("b", 60), file("c", 61)]
    assert outlived(files, NOW, 60, 0) == {"c"}
    assert outlived(files, NOW, 0, 0) == set()


def test_by_size_the_oldest_go_until_the_rest_takes_no_more() -> None:
    files = [file("new", 1, MB), file("middle", 2, MB), file("old", 3, MB), file("oldest", 4, 1)]
    assert outlived(files, NOW, 0, 2) == {"old", "oldest"}
    assert outlived(files, NOW, 0, 3) == {"oldest"}
    assert outlived(files, NOW, 2, 2) == {"old", "oldest"}
    assert outlived(files, NOW, 1, 4) == {"middle", "old", "oldest"}


def archived(root: Path, rounds: int, **settings: object) -> dict[bytes, bytes]:
    """A log of so many archives, with a second map that is never rewritten."""
    expected = {}
    with imap_wal.open(root.as_uri(), node="n", **settings) as store:
        for number in range(rounds):
            chance = Random(number)
            values = {b"%d" % key: chance.randbytes(1000) for key in range(200)}
            expected.update(values)
            store.map("m", raw=True).update(values)
            store.map("other")[number] = number
            store.archive()
    return expected


def run(*arguments: str) -> None:
    done = CliRunner().invoke(group, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def archives(root: Path, name: str) -> list[Path]:
    return sorted(root.glob(f"default/embedded/nodes/n/archive/{name}/*.parquet"))


@pytest.mark.parametrize("by", ["owner", "prune"])
def test_covered_archives_go_by_age_and_what_is_not_covered_stays_however_old(tmp_path: Path, by: str) -> None:
    expected = archived(tmp_path, 4)
    run("rewrite", tmp_path.as_uri(), "--map", "m")
    for path in [*archives(tmp_path, "m")[:2], *archives(tmp_path, "other")]:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    if by == "owner":
        with imap_wal.open(tmp_path.as_uri(), node="n", wal_ttl_seconds=3600) as store:
            store.archive()
    else:
        run("prune", tmp_path.as_uri(), "--wal-ttl-seconds", "3600", "--yes")
    assert len(archives(tmp_path, "m")) == 2
    assert len(archives(tmp_path, "other")) == 4
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        assert dict(store.map("m", raw=True)) == expected
        assert dict(store.map("other")) == {number: number for number in range(4)}


@pytest.mark.parametrize("by", ["owner", "prune"])
def test_covered_archives_go_by_size_oldest_first(tmp_path: Path, by: str) -> None:
    expected = archived(tmp_path, 12)  # some 200 kB each
    run("rewrite", tmp_path.as_uri(), "--map", "m")
    before = archives(tmp_path, "m")
    for age, path in enumerate(before):
        os.utime(path, (1_700_000_000 + age, 1_700_000_000 + age))
    if by == "owner":
        with imap_wal.open(tmp_path.as_uri(), node="n", wal_size_limit_mb=1) as store:
            store.archive()
    else:
        run("prune", tmp_path.as_uri(), "--wal-size-limit-mb", "1", "--yes")
    left = archives(tmp_path, "m")
    assert 0 < len(left) < len(before)
    assert left == before[-len(left) :]
    assert sum(path.stat().st_size for path in left) <= MB
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        assert dict(store.map("m", raw=True)) == expected


def test_without_either_nothing_goes_by_itself(tmp_path: Path) -> None:
    archived(tmp_path, 3)
    run("rewrite", tmp_path.as_uri())
    for path in archives(tmp_path, "m"):
        os.utime(path, (1, 1))
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        store.archive()
    assert len(archives(tmp_path, "m")) == 3
