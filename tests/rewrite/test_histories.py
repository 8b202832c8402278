"""After any history of a cluster and its logs, a restore has the newest entry of every key, and no
deleted one."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings

from storage_backends.memory import MemoryStore, forget
from tests.histories import Cluster, steps
from tests.kit.effort import share

_numbers = itertools.count()


@settings(
    max_examples=share(200, ci=3),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(history=steps)
def test_restore_equals_the_reference_over_random_histories(
    history: list[tuple[str, int, int, int]],
) -> None:
    name = f"histories-{next(_numbers)}"
    cluster = Cluster(MemoryStore(name))
    try:
        cluster.play(history)
        cluster.check()
        for kind in ("archive", "rewrite", "prune", "rewrite", "prune", "crash"):
            cluster.step(kind, "n1", "orders", b"k0")
            cluster.check()
    finally:
        cluster.close()
        forget(name)
