"""Random histories with crashes, against a plain dict. Hypothesis prints the blob that replays a
failure."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kit.effort import share
from tests.kit.reference import Reference


class Killing(Reference):
    durability = "os"


class LosingPower(Reference):
    crash = "power-loss"


_settings = settings(
    max_examples=share(60),
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    derandomize=False,
)


def test_a_map_with_durability_always_equals_a_dict_through_kills() -> None:
    run_state_machine_as_test(Reference, settings=_settings)


def test_a_map_with_durability_os_equals_a_dict_through_kills() -> None:
    run_state_machine_as_test(Killing, settings=_settings)


def test_map_with_always_equals_dict_through_power_losses() -> None:
    run_state_machine_as_test(LosingPower, settings=_settings)
