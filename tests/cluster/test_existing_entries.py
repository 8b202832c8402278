"""Entries that a map has before its members have the plug-in. The members without it do not have
its classes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.contents import refusal
from tests.cluster.waiting import until

NAME, KEYS = "orders", 300


def maps(endpoint: str) -> dict[str, Any]:
    return {NAME: logged_map(endpoint, backup_count=1)}


def no_maps(_: str) -> dict[str, Any]:
    return {}


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["leave", "kill"])
def test_they_are_kept_and_a_member_without_it_gets_them(
    classpath: str, tmp_path: Path, end: str
) -> None:
    hazelcast, tests, _ = classpath.split(os.pathsep)
    plain = os.pathsep.join([hazelcast, tests])
    with Cluster(tmp_path, plain, no_maps, offsets_ms=(0, 0)) as cluster:
        cluster.start(1)
        written = {f"k{number}": number for number in range(KEYS)}
        cluster.client().get_map(NAME).blocking().put_all(written)
        cluster.classpath, cluster.maps = classpath, maps
        logged = cluster.join(2)
        cluster.members[0].leave()
        text = f'{KEYS} entries of map "{NAME}" in memory, and the log has none'
        until("the map is refused", lambda: text in refusal(cluster, NAME))
        cluster.classpath, cluster.maps = plain, no_maps
        cluster.join(1)
        logged.leave() if end == "leave" else logged.kill()
        assert dict(cluster.client().get_map(NAME).blocking().entry_set()) == written
