"""Every store that needs no service keeps the promises of the interface. Stores that need services:
test_s3.py, test_hdfs.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_backends import SegmentStore, open_store
from storage_backends.local import LocalStore
from storage_backends.memory import forget
from storage_backends.testing import FaultyStore, check_segment_store
from tests.kit.effort import every

Reopen = Callable[[], SegmentStore]


@pytest.fixture(params=["file", "plain", "memory", "objects+file"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    name = f"conformance-{tmp_path.name}"
    urls = {
        "file": f"file://{tmp_path}/not/yet/there",
        "plain": str(tmp_path / "a directory"),
        "memory": f"memory://{name}",
        "objects+file": f"objects+file://{tmp_path}/objects",
    }
    yield lambda: open_store(urls[request.param])
    forget(name)


def test_store_keeps_every_promise(reopen: Reopen) -> None:
    check_segment_store(reopen(), reopen=reopen)


@every(5)
def test_store_in_the_fault_wrapper_keeps_every_promise(reopen: Reopen) -> None:
    store = FaultyStore(reopen())
    check_segment_store(store, reopen=lambda: FaultyStore(reopen()))
    assert store.count > 100


def test_every_store_is_one_by_its_protocol(reopen: Reopen) -> None:
    assert isinstance(reopen(), SegmentStore)
    assert isinstance(FaultyStore(reopen()), SegmentStore)


class _LooksThenWrites(LocalStore):
    def create(self, path: str, data: bytes) -> None:
        if not self.exists(path):
            self.replace(path, data)


class _ListsWhatItListedBefore(LocalStore):
    def list(self, folder: str):  # type: ignore[no-untyped-def]
        cache = self.__dict__.setdefault("cache", {})
        return cache.setdefault(folder, super().list(folder))


class _ForgetsItsLock(LocalStore):
    def lock(self, path: str, holder: str, *, take: bool = False):  # type: ignore[no-untyped-def]
        return super().lock(path, holder, take=True)


@every(3)
@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (_LooksThenWrites, "a second create"),
        (_ListsWhatItListedBefore, "list sees"),
        (_ForgetsItsLock, "a lock is exclusive"),
    ],
)
def test_conformance_names_the_broken_promise(
    broken: type[LocalStore], promise: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=promise):
        check_segment_store(broken(str(tmp_path)))
