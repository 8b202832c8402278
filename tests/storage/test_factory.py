"""A URL leads to its store, or to an error with advice."""

from __future__ import annotations

import builtins
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from storage_backends import StorageError, Unsupported, open_store
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore, forget
from storage_backends.objects import LocalObjects, ObjectStore


def test_paths_and_file_urls_are_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url, root in (
        ("/var/lib/maps", "/var/lib/maps"),
        ("file:///var/lib/maps", "/var/lib/maps"),
        ("file:///var/lib/maps/", "/var/lib/maps"),
        ("file://localhost/var/lib/maps", "/var/lib/maps"),
        ("relative/what?", f"{tmp_path}/relative/what?"),
    ):
        store = open_store(url)
        assert isinstance(store, LocalStore)
        assert store.root == root
        assert store.url == f"file://{root}"


def test_opening_creates_nothing(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/new", f"objects+file://{tmp_path}/new"):
        store = open_store(url)
        assert store.list("") == []
        assert store.folders("") == []
        assert not store.exists("a")
        store.delete("a")
    assert list(tmp_path.iterdir()) == []


def test_two_memory_stores_of_one_name_see_the_same_files() -> None:
    open_store("memory://shared").create("a", b"1")
    assert open_store("memory://shared").read("a") == b"1"
    assert not open_store("memory://other").exists("a")
    assert isinstance(open_store("memory://"), MemoryStore)
    forget("shared")


def test_objects_on_a_local_directory(tmp_path: Path) -> None:
    store = open_store(f"objects+file://{tmp_path}")
    assert isinstance(store, LocalObjects)
    assert not store.capabilities.durable_append
    assert store.url == f"objects+file://{tmp_path}"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("file://var/lib", "three slashes"),
        ("file:///var/lib?a=1", "takes no options, found a"),
        ("memory://x?a=1", "takes no options"),
        ("nonsense://x", "no driver knows nonsense://"),
        ("s3://bucket/root?client_kwargs={oops", "not JSON"),
        ("s3://bucket/root?no_such_option=1&client_kwargs={}", "cannot be opened|no_such_option"),
    ],
)
def test_bad_url_says_what_is_wrong(url: str, text: str) -> None:
    with pytest.raises(StorageError, match=text):
        open_store(url).list("")


@pytest.mark.parametrize(
    ("url", "extra"), [("s3://b/c", "s3"), ("gs://b/c", "gcs"), ("abfs://c@a/b", "azure")]
)
def test_missing_driver_says_what_to_install(
    url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_drivers(name: str, *rest: object, **more: object) -> object:
        if name.partition(".")[0] in ("s3fs", "gcsfs", "adlfs"):
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    for module in [
        name for name in sys.modules if name.partition(".")[0] in ("s3fs", "gcsfs", "adlfs")
    ]:
        monkeypatch.delitem(sys.modules, module)
    for protocol in ("s3", "gs", "abfs"):
        monkeypatch.delitem(
            importlib.import_module("fsspec.registry")._registry, protocol, raising=False
        )
    monkeypatch.setattr(builtins, "__import__", without_drivers)
    with pytest.raises(StorageError, match=rf"pip install 'imap-wal\[{extra}\]'"):
        open_store(url)


def test_driver_without_an_atomic_create_says_so_and_reads(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1").write_bytes(b"12345")
    store = ObjectStore(f"file://{tmp_path}")
    assert not store.capabilities.exclusive_create
    assert store.read("a/1", 1, 2) == b"23"
    assert [(file.path, file.size) for file in store.list("")] == [("a/1", 5)]
    assert store.list("")[0].modified_ms > 1_600_000_000_000
    assert store.folders("") == ["a"]
    with pytest.raises(Unsupported, match="atomic"):
        store.create("a/2", b"")


def test_local_use_imports_neither_fsspec_nor_its_drivers(tmp_path: Path) -> None:
    code = (
        f"import sys, storage_backends; storage_backends.open_store({str(tmp_path)!r}).list(''); "
        "print('fsspec' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert found.stdout.strip() == "False"
