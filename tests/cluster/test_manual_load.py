"""A user's `load_all` beside changes of the same keys."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map

ROUNDS = 10
KEYS = 500


@pytest.mark.thorough
def test_a_load_undoes_no_acknowledged_change(tmp_path: Path, classpath: str) -> None:
    """With offload, changes that wait for the agent when the load begins are kept: values, and
    removals. An evicted key is loaded."""
    with (
        Cluster(
            tmp_path,
            classpath,
            lambda endpoint: {"default": logged_map(endpoint, store={"offload": True})},
        ) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        cluster.start(1)
        client = cluster.client()
        partition = client.partition_service.get_partition_id
        # The changes of one partition run one after the other.
        keys = [key for key in range(400_000) if partition(key) == partition(0)][:KEYS]
        orders = client.get_map("orders")
        orders.put_all(dict.fromkeys(keys, 0)).result()
        for number in range(1, ROUNDS + 1):
            changes = []
            for place, key in enumerate(keys):
                if place == 20:
                    loading = pool.submit(orders.blocking().load_all, keys, number % 3 > 0)
                removes = (place + number) % 4 == 0
                changes.append(orders.remove(key) if removes else orders.set(key, number))
            for each in changes:
                each.result()
            loading.result()
            expected = {key: number for place, key in enumerate(keys) if (place + number) % 4}
            assert dict(orders.get_all(keys).result()) == expected, f"round {number}"
        orders.evict_all().result()
        orders.load_all(replace_existing_values=False).result()
        assert dict(orders.entry_set().result()) == expected
