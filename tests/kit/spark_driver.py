"""A rewrite on Spark whose last step waits, run as a program of its own.

    python spark_driver.py ROOT GATE MODE ROWS NAME=VALUE…

When an attempt at a range of keys has written its files, and before it answers, it writes
GATE/{partition}-{process}. Then, in mode `held`, it waits for the file GATE/go. In mode `slow`,
only the first attempt at partition 0 waits, as with a slow upload: until another one is done.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from imap_wal.context import open_context
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.sorted_runs import Sizes
from imap_wal.rewrite.task_engine import Merging
from pyspark_imap_wal import rewrite_engine
from pyspark_imap_wal.rewrite_engine import SparkEngine


def waiting(once: Any, gate: str, mode: str) -> Any:
    def write(*given: Any) -> Any:
        inner = once(*given)
        if not isinstance(given[1], Merging):
            return inner

        # Spark sends this function itself to the workers: they do not have this module.
        def in_worker(inputs: Any) -> Iterator[Any]:
            answer = list(inner(inputs))
            context = TaskContext.get()
            assert context is not None
            partition = context.partitionId()
            Path(gate, f"{partition}-{os.getpid()}").touch()
            if mode == "held":
                awaited = Path(gate, "go")
            else:
                awaited = Path(gate, f"done-{partition}")
                try:
                    os.close(os.open(Path(gate, f"slow-{partition}"), os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    awaited.touch()
                if partition:
                    awaited.touch()
            while not awaited.exists():
                time.sleep(0.05)
            yield from answer

        return in_worker

    return write


def main(root: str, gate: str, mode: str, rows: str, *properties: str) -> None:
    rewrite_engine._answering = waiting(rewrite_engine._answering, gate, mode)
    sizes = Sizes(range_bytes=1, group_rows=int(rows))
    engine = SparkEngine(properties=dict(each.split("=", 1) for each in properties), sizes=sizes)
    log = ClusterLog(open_context(root), "ns", "c")
    print(rewrite(log, engine, skew_ms_max=2**60).maps)


if __name__ == "__main__":
    main(*sys.argv[1:])
