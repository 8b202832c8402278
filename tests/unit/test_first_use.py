"""The first use of manifests by several threads at once, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.effort import thorough

TURNS = 10
"""Without the lock in `checked`, about every fourth process ended with a segmentation fault."""

PROGRAM = """
import dataclasses, sys, threading
from imap_wal.manifest import cluster, node
from imap_wal.manifest.store import checked

sys.setswitchinterval(1e-6)
kinds = [
    each
    for module in (node, cluster)
    for each in vars(module).values()
    if isinstance(each, type) and dataclasses.is_dataclass(each)
]
assert len(kinds) > 5
barrier = threading.Barrier(8)

def use():
    for kind in kinds:
        barrier.wait()
        try:
            checked({}, kind)
        except ValueError:
            pass

threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@thorough
def test_threads_parse_manifests_for_the_first_time_together() -> None:
    for _ in range(TURNS):
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
