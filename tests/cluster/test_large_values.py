"""Values that together are larger than any answer are restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map

MB = 1024 * 1024


@pytest.mark.thorough
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("count", "size", "heap"),
    [
        (12, 8 * MB, "1500m"),
        pytest.param(64, 64 * MB, "8g", marks=(pytest.mark.torture, pytest.mark.timeout(3600))),
    ],
    ids=["12 of 8 MB", "64 of 64 MB"],
)
def test_values_larger_together_than_an_answer_are_restored(
    tmp_path: Path, classpath: str, count: int, size: int, heap: str
) -> None:
    def configs(endpoint: str) -> dict[str, object]:
        patience = {"timeout-ms": "60000", "agent-timeout-ms": "30000"}
        return {"default": logged_map(endpoint, patience)}

    with Cluster(
        tmp_path, classpath, configs, options=(f"-Xmx{heap}",), durability="os"
    ) as cluster:
        cluster.start(1)
        large = cluster.client(invocation_timeout=300).get_map("large").blocking()
        for number in range(count):
            large.set(number, bytearray([number]) * size)
        cluster.kill_everything()
        cluster.start(1)
        again = cluster.client(invocation_timeout=900).get_map("large").blocking()
        for number in range(count):
            found = again.get(number)
            assert (
                len(found) == size and bytes(found[:3]) == bytes(found[-3:]) == bytes([number]) * 3
            ), number
        assert again.size() == count
        peak = next(
            line
            for line in Path(f"/proc/{cluster.agents[0].pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        print(f"peak memory of the agent: {peak}")
        # The index of a restore may take 1 GiB (restore_memory_bytes); answers take a part of this.
        assert int(peak.split()[1]) * 1024 < 2500 * MB
