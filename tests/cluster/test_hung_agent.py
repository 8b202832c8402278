"""Which operations wait while an agent hangs, and that they fail at once when that is known."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hazelcast.future import Future

from imap_wal.errors import NotAppended, OutcomeUnknown
from imap_wal.hazelcast import error_of
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import QUICK_MEMBER, logged_map
from tests.cluster.waiting import until
from tests.kit.effort import thorough

THREADS = int(QUICK_MEMBER["hazelcast.operation.thread.count"])
AGENT_TIMEOUT_MS = 8000
"""Long, so that everything that does not wait for the agent ends before that."""


def failure(future: Future[Any]) -> Exception | None:
    try:
        future.result()
    except Exception as error:
        return error_of(error)
    return None


@thorough
@pytest.mark.parametrize(
    "offload",
    [False, True],
    ids=["offload off", "offload on"],
)
def test_a_hung_agent_delays_only_operations_after_a_change(
    tmp_path: Path, classpath: str, offload: bool
) -> None:
    """Without offload the change occupies the partition's thread; with offload, only this map's
    operations on the partition wait for it. All of them succeed when the agent counts as hung."""

    def maps(endpoint: str) -> Mapping[str, Any]:
        patient = {"agent-timeout-ms": str(AGENT_TIMEOUT_MS), "timeout-ms": "60000"}
        return {"orders": logged_map(endpoint, patient, store={"offload": offload}), "plain": {}}

    with Cluster(tmp_path, classpath, maps) as cluster:
        cluster.start(1)
        agent, client = cluster.agents[0], cluster.client()
        partition = client.partition_service.get_partition_id
        changed, on_its_thread, elsewhere = (
            0,
            next(
                key
                for key in range(1, 5000)
                if partition(key) != partition(0)
                and partition(key) % THREADS == partition(0) % THREADS
            ),
            next(
                key for key in range(1, 5000) if partition(key) % THREADS != partition(0) % THREADS
            ),
        )
        orders, plain = client.get_map("orders"), client.get_map("plain")
        for entries in (orders, plain):
            entries.put_all(dict.fromkeys((changed, on_its_thread, elsewhere), "old")).result()
        agent.send(signal.SIGSTOP)
        try:
            assert orders.get(changed).result() == "old", "without a change nothing waits"
            change = orders.set(changed, "new")
            assert orders.get(elsewhere).result() == "old"
            assert len(orders.entry_set().result()) == 3, "a query reads memory"
            waiting = [orders.get(changed)]
            if offload:
                assert orders.get(on_its_thread).result() == "old"
                assert plain.get(changed).result() == "old"
            else:
                waiting += [orders.get(on_its_thread), plain.get(changed)]
            assert not change.done(), "all of this was answered while the change waited"
            assert isinstance(failure(change), OutcomeUnknown)
            assert [each.result() for each in waiting] == ["old"] * len(waiting)
            for _ in range(100):
                assert isinstance(failure(orders.set(elsewhere, "new")), NotAppended)
                assert orders.get(changed).result() == orders.get(elsewhere).result() == "old"
        finally:
            agent.send(signal.SIGCONT)
        until("changes are accepted again", lambda: failure(orders.set(elsewhere, "new")) is None)
