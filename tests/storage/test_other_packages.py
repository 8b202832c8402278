"""A package outside of this project adds a storage with an entry point: examples/sqlite_storage,
installed into a folder of its own."""

from __future__ import annotations

import importlib.metadata
import os
import pkgutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from storage_backends import StorageError, open_store, registry
from storage_backends.registry import BACKENDS, backend_of

ROOT = Path(__file__).parents[2]

CHECK = """
import sys
import imap_wal, imap_wal_sqlite
from storage_backends import open_store
from imap_wal.storage import check_segment_store

url = sys.argv[1]
store = open_store(url)
assert isinstance(store, imap_wal_sqlite.SqliteStore)
check_segment_store(store, reopen=lambda: open_store(url))
for expected in ({}, {"a": 1}):
    with imap_wal.open(url, node="n") as log:
        assert dict(log.map("m")) == expected
        log.map("m")["a"] = 1
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the example in it."""
    folder = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target")
    example = ROOT / "examples" / "sqlite_storage"
    run("-m", "pip", "install", *options, str(folder), str(example))
    return folder


def run(*words: str, site: Path | None = None) -> str:
    path = os.pathsep.join(map(str, filter(None, (site, ROOT))))
    ended = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_an_installed_package_serves_its_scheme(site: Path, tmp_path: Path) -> None:
    """It keeps the promises of `SegmentStore`, a map lasts on it, commands read it, and the
    doctor names it."""
    url = f"sqlite://{tmp_path}/maps.db"
    run("-c", CHECK, url, site=site)
    assert "m[a] = 1" in run("-m", "rewrite_cli", "dump", url, site=site)
    assert "imap_wal_sqlite:BACKEND" in run("-m", "rewrite_cli", "doctor", url, site=site)


def test_every_opener_can_be_imported() -> None:
    for backend in BACKENDS.values():
        assert callable(pkgutil.resolve_name(backend.opener))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (("no_such_module:BACKEND",), "cannot be loaded from no_such_module"),
        (("os:sep",), "os:sep is a str"),
        (("os:sep", "os:curdir"), "two packages have a storage for notes://"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_named(
    values: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [EntryPoint("notes", value, registry.ENTRY_POINTS) for value in values]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    with pytest.raises(StorageError, match=why):
        open_store("notes://x")


def test_a_scheme_of_this_package_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("s3", "os:sep", registry.ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    assert backend_of("s3://bucket/maps") is BACKENDS["s3"]
