"""Settings of hypothesis that several property tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

from tests.kit.effort import share

OF_HISTORIES = settings(
    max_examples=share(40),
    deadline=None,
    print_blob=True,
    # Without shrinking: one history takes seconds, and `print_blob` replays it.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
"""For random histories of logs."""
