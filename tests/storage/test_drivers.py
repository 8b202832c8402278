"""Drivers of fsspec that differ from the ones that the log was written with, as small fakes."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from storage_backends import StorageError, Unsupported, open_store
from storage_backends.objects import ObjectStore

_numbers = itertools.count(1)


class Conditional(MemoryFileSystem):
    """A good driver: creates are exclusive, in one step."""

    cachable = False
    store: ClassVar[dict[str, Any]] = {}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        super().pipe_file(path, value, mode="overwrite")

    def put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **_: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes(), mode)


class IgnoresMode(Conditional):
    """As obstore's: `mode` is ignored."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        super().pipe_file(path, value)


class IgnoresModeOfFiles(Conditional):
    def put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **_: Any) -> None:
        super().put_file(lpath, rpath)


class ChecksAndWrites(Conditional):
    """It has fsspec's own methods."""

    pipe_file = AbstractFileSystem.pipe_file
    put_file = AbstractFileSystem.put_file


class KnowsItsOptions(Conditional):
    """As obstore's: an option that it does not know is an error of its first use."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.given = options

    def find(self, path: str, *args: Any, **more: Any) -> Any:
        if unknown := set(self.given) - {"region"}:
            raise LookupError(f"Configuration key: {min(unknown)!r} is not known")
        return super().find(path, *args, **more)


class TakesNoOptions(Conditional):
    def __init__(self) -> None:
        super().__init__()


class IgnoresOptions(Conditional):
    """As those of Google and Azure: an option that it does not know has no effect."""

    def __init__(self, endpoint_url: str = "", **options: Any) -> None:
        super().__init__(**options)


class ListsNames(Conditional):
    """As adlfs: for the path of a file, `find` returns a list."""

    def find(self, path: str, *args: Any, **more: Any) -> Any:
        return [path] if self.isfile(path) else super().find(path, *args, **more)


class ListsOnlyNames(Conditional):
    def find(self, path: str, *args: Any, **more: Any) -> Any:
        return list(super().find(path, *args, **more))


def opened(kind: type[AbstractFileSystem], monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """A store over this driver, as a program gets it that registered the driver for s3://."""
    monkeypatch.setattr(kind, "protocol", ("s3", "memory"))
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "s3", kind)
    return open_store(f"s3://drivers/{next(_numbers)}", options)


def test_a_good_driver_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = opened(Conditional, monkeypatch)
    store.create("a", b"1")
    (tmp_path / "file").write_bytes(b"2")
    store.create_from("b", str(tmp_path / "file"))
    assert [file.path for file in store.list("")] == ["a", "b"]


@pytest.mark.parametrize("kind", [IgnoresMode, ChecksAndWrites])
def test_a_driver_without_exclusive_creates_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, kind: type[AbstractFileSystem]
) -> None:
    store = opened(kind, monkeypatch)
    with pytest.raises(Unsupported, match=rf"tests.storage.test_drivers.{kind.__name__}\b"):
        store.create("a", b"1")
    assert store.list("") == []


def test_creates_from_files_are_probed_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = opened(IgnoresModeOfFiles, monkeypatch)
    store.create("a", b"1")
    (tmp_path / "file").write_bytes(b"2")
    with pytest.raises(Unsupported, match="IgnoresModeOfFiles"):
        store.create_from("b", str(tmp_path / "file"))
    assert [file.path for file in store.list("")] == ["a"]


def test_a_driver_gets_only_the_users_options(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(KnowsItsOptions, monkeypatch, region="eu-1")
    store.create("a", b"1")
    assert isinstance(store, ObjectStore)
    assert store._fs.given == {"region": "eu-1"}
    assert not store._fs.dircache.use_listings_cache


def test_an_unknown_option_is_named_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the driver and the options, without their values."""
    store = opened(KnowsItsOptions, monkeypatch, regoin="eu-1", region="eu-1")
    with pytest.raises(
        StorageError, match=r"'regoin' .*KnowsItsOptions, .*region, regoin"
    ) as error:
        store.list("")
    assert "eu-1" not in str(error.value)


def test_an_unknown_option_is_named_at_the_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match=r"s3:// cannot be opened with the options regoin"):
        opened(TakesNoOptions, monkeypatch, regoin="eu-1")


def test_a_misspelt_option_is_no_ignored_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a misspelt address, the driver would use another service."""
    with pytest.raises(StorageError, match=r"has no option 'endpoint_ur'; it has 'endpoint_url'"):
        opened(IgnoresOptions, monkeypatch, endpoint_ur="http://gateway")
    opened(IgnoresOptions, monkeypatch, endpoint_url="http://gateway", other=1)


def test_a_misspelt_option_of_hdfs_is_named() -> None:
    pytest.importorskip("requests")
    with pytest.raises(StorageError, match=r"WebHDFS has no option 'tokn'; it has 'token'"):
        open_store("hdfs://namenode/path", {"tokn": "secret"})


def test_nothing_is_listed_below_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure's driver returns a list for it, in place of a mapping."""
    store = opened(ListsNames, monkeypatch)
    store.create("folder/a", b"1")
    assert store.list("folder/a") == []
    assert [file.path for file in store.list("folder")] == ["folder/a"]


def test_a_listing_without_sizes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not files of no bytes."""
    store = opened(ListsOnlyNames, monkeypatch)
    store.create("folder/a", b"1")
    with pytest.raises(StorageError, match="without their sizes"):
        store.list("folder")
