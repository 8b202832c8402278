"""Several actors, each in the middle of something, under a scheduler that decides at every call to
the storage: nothing acknowledged is lost, nothing old is served. `IMAP_WAL_SEED` begins elsewhere.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from imap_wal.errors import InvalidSetting
from imap_wal.manifest import cluster
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest, Seen
from imap_wal.read.file_scan import FileScan
from imap_wal.settings import Settings
from storage_backends import StoredFile
from tests.kit.effort import brief, every, share, thorough
from tests.simulation.__main__ import story
from tests.simulation.choosers import Pause, Replay
from tests.simulation.explore import chooser_of, plan_of, run_seed
from tests.simulation.install import installed, modules
from tests.simulation.many import explore
from tests.simulation.runs import Result, play
from tests.simulation.scenarios import OPEN, SCENARIOS
from tests.simulation.values import frozen_classes

Cases = Callable[[int], None]

SCHEDULES = 20_000
"""`make test` tries 3 of a hundred."""
SCHEDULES_LONG = int(os.environ.get("IMAP_WAL_SCHEDULES", "5000000"))
FIRST = int(os.environ.get("IMAP_WAL_SEED", "1"))


@pytest.fixture
def simulated() -> Iterator[None]:
    with installed():
        yield


def calls(result: Result) -> list[tuple[str, str, str]]:
    return [(step.task, step.call, step.path) for step in result.trace]


@every(16)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_seed_replays_exactly(scenario: str, simulated: None) -> None:
    for seed in range(1, 9):
        first = run_seed(scenario, seed)
        assert calls(run_seed(scenario, seed)) == calls(first)
        assert calls(play(plan_of(scenario, seed), Replay(first.runs))) == calls(first)


_DIGEST = """
import hashlib, sys
from tests.simulation.explore import run_seed
from tests.simulation.install import installed
from tests.simulation.scenarios import SCENARIOS
found = hashlib.sha256()
with installed():
    for scenario in SCENARIOS:
        for seed in range(1, int(sys.argv[1])):
            for step in run_seed(scenario, seed).trace:
                found.update(f"{step.task} {step.call} {step.path}".encode())
print(found.hexdigest())
"""


@thorough
def test_a_seed_replays_in_another_process_whose_hashes_differ() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST, str(1 + share(19))],
            check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for hashes in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


def test_a_value_in_a_simulation_equals_one_outside() -> None:
    """Frozen values have the same contents, hash and signature, and refuse the same arguments."""
    classes = frozen_classes(modules())
    signatures = {kind: list(inspect.signature(kind).parameters) for kind in classes}
    assert {NodeManifest, ClusterManifest, Settings, StoredFile, FileScan} <= set(classes)
    given = dataclasses.replace(NodeManifest(requests={1: 2}), epoch=3, cluster=Seen(1, 2, 3))
    file = StoredFile("a", 1, 2)
    with installed():
        made = vars(cluster)["replace"](
            NodeManifest(requests={1: 2}), epoch=3, cluster=Seen(1, 2, 3)
        )
        assert made == given and hash(StoredFile("a", 1, 2)) == hash(file)
        assert NodeManifest().requests is not NodeManifest().requests
        weaker: dict[str, Any] = {"durability": "os"}
        assert Settings(**weaker) == dataclasses.replace(Settings(), **weaker)
        with pytest.raises(InvalidSetting):
            Settings(ring_slots=3)
        with pytest.raises(TypeError):
            StoredFile("a", 1, 2, sizes=3)  # type: ignore[call-arg]
        for kind in classes:
            assert list(inspect.signature(kind).parameters) == signatures[kind], kind
    with pytest.raises(dataclasses.FrozenInstanceError):
        file.size = 3


def test_every_way_to_choose_is_drawn() -> None:
    drawn = {type(chooser_of(seed, plan_of("takeovers", seed))).__name__ for seed in range(100)}
    assert drawn == {"RandomWalk", "Priorities", Pause.__name__}


def check(runs: int, cases: Cases) -> None:
    tally = explore([name for name in SCENARIOS if name not in OPEN], FIRST, runs)
    if tally.failures:
        failure = tally.failures[0]
        with installed():
            result = run_seed(failure.scenario, failure.seed)
            text = failure.text
            if result.violation is not None:
                text = story(failure.scenario, failure.seed, result)
        pytest.fail(text, pytrace=False)
    assert tally.acknowledged > tally.schedules, "the actors did almost nothing"
    cases(tally.schedules)


@pytest.mark.timeout(1800)
def test_twenty_thousand_schedules_lose_nothing_acknowledged_and_serve_nothing_old(
    cases: Cases,
) -> None:
    check(share(SCHEDULES, ci=1), cases)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_five_million_schedules_lose_nothing_acknowledged_and_serve_nothing_old(
    cases: Cases,
) -> None:
    check(brief(SCHEDULES_LONG, 0.1), cases)
