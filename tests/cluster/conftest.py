"""One cluster for all tests of operations and of restore: written to, killed, restarted with two
members, killed, restarted with three."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import history
from tests.cluster.cluster import Cluster
from tests.cluster.history import History, Now
from tests.cluster.processes import ROOT

OLDER = ROOT / "hazelcast_plugin/target/older"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hz")


@pytest.fixture(scope="session")
def past(folder: Path, classpath: str) -> Iterator[History]:
    yield from history.first_lifetime(
        Cluster(
            folder,
            classpath,
            history.maps,
            offsets_ms=history.OFFSETS_MS,
            properties=history.PROPERTIES,
            **history.SETTINGS,
        )
    )


@pytest.fixture(
    scope="session",
    params=[2, pytest.param(3, marks=pytest.mark.thorough)],
    ids=["two members", "three members"],
)
def now(past: History, request: pytest.FixtureRequest) -> Iterator[Now]:
    """After `kill -9` of everything and a restart."""
    yield from history.later_lifetime(past, request.param)


@pytest.fixture(params=["5.5.0", "5.6.0"])
def classpath_of(request: pytest.FixtureRequest, classpath: str) -> str:
    """The plug-in as it was built for the newest version, with an older Hazelcast."""
    _, tests, plugin = classpath.split(os.pathsep)
    jar = OLDER / f"hazelcast-{request.param}.jar"
    assert jar.is_file(), f"{jar} is missing: run make setup"
    return os.pathsep.join([str(jar), tests, plugin])
