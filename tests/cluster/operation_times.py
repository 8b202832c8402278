"""How long each operation of a map takes on two members with one backup, measured by a member."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map

NAME = "times"
STATES = ("absent", "present")

Times = dict[str, dict[str, list[float]]]
"""Operation → state of its key before → milliseconds of each call, sorted."""


def maps(endpoint: str) -> dict[str, Any]:
    return {NAME: logged_map(endpoint, backup_count=1)}


def measured(folder: Path, classpath: str, repeats: int) -> Times:
    """The keys are of both members. The first calls of all operations do not count."""
    with Cluster(folder, classpath, maps, offsets_ms=(0, 0)) as cluster:
        cluster.start(2)
        cluster.wait_safe(2)
        member = cluster.members[0]
        member.ask("times", NAME, "2", seconds=240)
        found: Times = member.ask("times", NAME, f"{repeats}", seconds=240)
        return found


def medians(times: Times) -> dict[tuple[str, str], float]:
    """(operation, state) → milliseconds."""
    return {
        (name, state): median(calls[state]) for name, calls in times.items() for state in STATES
    }
