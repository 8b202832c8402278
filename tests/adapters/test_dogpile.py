"""The backend of dogpile.cache: its own test suites, and what is special to a durable map."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dogpile.cache import make_region
from dogpile.cache.api import NO_VALUE
from dogpile.testing.fixtures import _GenericBackendTestSuite, _GenericSerializerTestSuite

import imap_wal
from imap_wal import InvalidSetting, NotSerializable
from tests.kit.effort import thorough
from tests.support import FakeClock

stores: dict[str, imap_wal.Store] = {}


@pytest.fixture(scope="module", autouse=True)
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    log = tmp_path_factory.mktemp("dogpile") / "log"
    with imap_wal.open("memory://") as store, imap_wal.connect(log) as connected:
        stores.update(open=store, connect=connected)
        yield


class _Suite(_GenericBackendTestSuite):
    """dogpile's own; its tests that sleep for seconds only in `make test-all`."""

    backend = "imap_wal"
    test_threaded_dogpile = thorough(_GenericBackendTestSuite.test_threaded_dogpile)
    test_threaded_get_multi = thorough(_GenericBackendTestSuite.test_threaded_get_multi)
    test_region_expire = thorough(_GenericBackendTestSuite.test_region_expire)


class TestOpenStore(_Suite):
    config_args = {"arguments": {"store": lambda: stores["open"]}}  # noqa: RUF012


class TestSerializerOfTheRegion(_GenericSerializerTestSuite, _Suite):
    config_args = {"arguments": {"store": lambda: stores["open"], "map": "json"}}  # noqa: RUF012


class TestConnected(_Suite):
    config_args = {"arguments": {"store": lambda: stores["connect"]}}  # noqa: RUF012


def region(arguments: dict[str, Any]) -> Any:
    return make_region().configure("imap_wal", arguments=arguments)


def test_cached_values_survive_a_restart(tmp_path: Path) -> None:
    value = {"tags": ("a", {"b"}), "none": None}
    with imap_wal.open(tmp_path) as opened:
        cache = region({"store": opened})
        cache.set("key", value)
        cache.set_multi({"bytes": b"|", "none": None})
        assert cache.get("key").get("tags") == ("a", {"b"})
    with imap_wal.open(tmp_path) as opened:
        cache = region({"store": lambda: opened})
        assert cache.get_or_create("key", pytest.fail) == value
        assert cache.get_multi(["bytes", "none", "other"]) == [b"|", None, NO_VALUE]


def test_a_url_is_opened_at_the_first_use(tmp_path: Path) -> None:
    """Two regions of a process may name the same place; so may other processes."""
    arguments = {"url": tmp_path / "log", "options": {"durability": "async"}}
    regions = [region(arguments), region(arguments)]
    assert not (tmp_path / "log").exists()
    regions[0].set("key", 1)
    assert regions[1].get("key") == 1
    for cache in regions:
        cache.backend.store.close()


def test_regions_share_a_store_with_a_map_each() -> None:
    with imap_wal.open("memory://") as opened:
        short, long = region({"store": opened, "map": "short"}), region({"store": opened})
        short.set("key", 1)
        long.set("key", 2)
        long.set_multi({"other": 3})
        assert (short.get("key"), long.get("key")) == (1, 2)
        assert sorted(opened.maps()) == ["dogpile.cache", "short"]
        commits = opened.statistics.commits.commits
        long.delete_multi(["key", "other", "absent"])
        assert opened.statistics.commits.commits == commits + 1
        assert long.get_multi(["key", "other"]) == [NO_VALUE, NO_VALUE]


def test_a_value_is_deleted_at_its_time_to_live() -> None:
    clock = FakeClock()
    with imap_wal.open("memory://", clock=clock) as opened:
        cache = region({"store": opened, "ttl": 60})
        cache.set("one", 1)
        cache.set_multi({"two": 2})
        clock.advance(59)
        assert cache.get_multi(["one", "two"]) == [1, 2]
        clock.advance(2)
        assert cache.get_multi(["one", "two"]) == [NO_VALUE, NO_VALUE]
        assert len(opened.map("dogpile.cache")) == 0


def test_an_object_is_refused_and_never_pickled() -> None:
    with imap_wal.open("memory://") as opened:
        cache = region({"store": opened})
        with pytest.raises(NotSerializable, match="object"):
            cache.set("key", object())
        assert cache.get("key") is NO_VALUE


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "one of the arguments"),
        ({"url": "x", "store": 1}, "one of the arguments"),
        ({"store": 1}, "store of imap_wal.open"),
        ({"url": "x", "ttl": 0}, "ttl is 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        region(arguments).get("key")
