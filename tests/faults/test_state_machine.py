"""Random histories of everything that is done to a map and its log, against a plain dict; killed
and without power at random. Hypothesis prints the blob that replays a failure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from imap_wal.clock import SystemRandomness
from imap_wal.context import Context
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends.faults import Fault, Killed, Plan
from tests.kit.effort import brief, share
from tests.kit.faults import Cases
from tests.kit.reference import Reference

_steps = 0


class Everything(Reference):
    """Puts, deletes, lifetimes, updates, rotation, archives, closes and crashes are inherited;
    here: rewrites, prunes, power losses, and crashes in them."""

    @initialize(crash=st.sampled_from(["kill", "power-loss"]))
    def choose(self, crash: str) -> None:
        self.crash = crash

    @rule(crash=st.sampled_from(["kill", "power-loss"]))
    def choose_again(self, crash: str) -> None:
        self.crash = crash

    def log(self) -> ClusterLog:
        return ClusterLog(
            Context(self.storage, clock=self.clock, randomness=SystemRandomness()),
            "default",
            "embedded",
        )

    @rule()
    def rewrite(self) -> None:
        rewrite(self.log(), LocalEngine(Settings(preallocate=False)))

    @rule()
    def prune(self) -> None:
        prune(self.log())

    @rule(seconds=st.sampled_from([3600, 7200]))
    def wait_long(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(
        at=st.integers(1, 60),
        what=st.sampled_from(["rewrite", "prune", "rotate"]),
        seed=st.integers(0, 99),
        tear=st.sampled_from(["prefix", "sectors"]),
    )
    def crash_in(self, at: int, what: str, seed: int, tear: Any) -> None:
        try:
            self.storage.plan = Plan((Fault(self.crash, at=at),), seed, tear)  # type: ignore[arg-type]
            self.storage._seen = [0]
            getattr(self, what)()
            self.storage.plan = Plan()
        except Killed:
            self.open()

    @invariant()
    def count(self) -> None:
        global _steps
        _steps += 1


def run(examples: int, steps: int, cases: Cases) -> int:
    """Returns how many steps were played."""
    global _steps
    _steps = 0
    run_state_machine_as_test(
        Everything,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    cases(_steps)
    return _steps


def test_a_map_equals_a_dict_over_random_steps(
    cases: Cases,
) -> None:
    """Two thousand steps, with kills, power losses, rewrites and prunes."""
    assert run(share(80), 50, cases) >= share(2000)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_map_equals_a_dict_over_many_random_steps(
    cases: Cases,
) -> None:
    """A hundred thousand steps, with kills, power losses, rewrites and prunes.
    All faults of crashes at once, long."""
    assert run(brief(2500), 80, cases) >= brief(100_000)
