"""The judges find a silent loss: agents with a deliberate defect, whose disks are lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nemesis.defects import DEFECTS
from tests.nemesis.runs import Run, failures
from tests.nemesis.storage import Storage
from tests.nemesis.world import World

EPISODES = {
    "losses-ignored": "lose-two-disks",
    "empty-disk-opened": "lose-two-disks",
    "copy-not-written": "lose-disk",
}
ATTEMPTS = 8
LOST = ("live map", "history", "restart", "query")


@pytest.mark.torture
@pytest.mark.cluster
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect: str, tmp_path: Path, classpath: str, seed: int) -> None:
    storage = Storage(own_disks=True, copies=2)
    with World(tmp_path, classpath, print, storage=storage, defect=defect) as world:
        run = Run(world, seed, restarts=lambda _: "as before")

        def until_found() -> Iterator[str]:
            for _ in range(ATTEMPTS):
                yield EPISODES[defect]
                if any(each.judgement in LOST for each in run.records[-1].findings):
                    return

        run.play(until_found())
    assert any(each.judgement in LOST for each in run.records[-1].findings), failures(run)
