"""The newest entry of each key of a realistic log, by our two engines, DuckDB and Spark SQL, in
turns on copies of the same archives: seconds, processor time, and the memory of all processes. The
live entries of all results must be equal.

`python -m benchmarks.pipeline RECORDS [ROUNDS]` prints the rows for another size, and with the
folder of a log of `benchmarks.realistic_log` instead of a number, those of this log.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from benchmarks.processes import processor_seconds

GIB = 2**30
EVERY_S, EVERY = 0.1, 1 / 300
"""Seconds between two readings of all processes, or this share of the time so far: a reading of
gigabytes of memory takes long itself. What a process does after its last reading is not counted."""
OURS, SPARK = "ours, one machine", "ours, on Spark"
KEYS_FIRST, ONE_PASS, SQL = "DuckDB, keys first", "DuckDB, one pass", "Spark SQL, max_by"
REWRITE = ("rewrite", "--namespace", "default", "--cluster", "log", "-o", "json", "--engine")
PEERS = {KEYS_FIRST: "keys-first", ONE_PASS: "one-pass", SQL: "spark-sql"}


@dataclass(frozen=True, slots=True)
class Run:
    """`cpu`: seconds of all processes. `memory`: the most bytes that all of them had at a time."""

    seconds: float
    cpu: float
    memory: int
    digest: tuple[int, int]


def run(records: int, rounds: int, judged: bool = True) -> list[dict[str, Any]]:
    """Rows for `records` changes of a third as many keys, and for archiving them."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        archived = json.loads(
            subprocess.run(
                [
                    *(sys.executable, "-m", "benchmarks.realistic_log"),
                    *(str(log), str(records), str(records // 3)),
                ],
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
        )
        rate = round(archived["archived"] / archived["seconds"])
        first, note = f"{records / 1e6:g} M records: archive", f"{records:,} records"
        return [
            _row(first, rate, "records/s", rate / 300_000, "300,000/s", note, judged),
            *of_log(log, rounds, judged),
        ]


def of_log(log: Path, rounds: int, judged: bool = True) -> list[dict[str, Any]]:
    """Rows of all engines, for a log that `benchmarks.realistic_log` wrote. The log is unchanged.

    Raises:
        RuntimeError: the results differ, or an engine failed.
    """
    found: dict[str, list[Run]] = {}
    for _ in range(rounds):
        for engine in (OURS, KEYS_FIRST, SPARK, SQL, ONE_PASS):
            found.setdefault(engine, []).append(once(engine, log))
    if len({each.digest for runs in found.values() for each in runs}) != 1:
        raise RuntimeError(f"the results differ: {found}")
    size = sum(file.stat().st_size for file in log.rglob("*.parquet"))
    head = f"{rows_in(log) / 1e6:.3g} M records"
    return list(rows_of(head, found, f"{size / GIB:.2f} GiB of archives", judged))


def rows_in(log: Path) -> int:
    """How many rows the archives of a log have."""
    return sum(pq.read_metadata(file).num_rows for file in log.rglob("*.parquet"))


def rows_of(
    head: str, found: dict[str, list[Run]], note: str, judged: bool
) -> Iterator[dict[str, Any]]:
    """Seconds, processor time and memory of each engine. A ratio above 1 says how many times
    faster, or smaller, it is than the peer."""

    def median(engine: str, what: str) -> float:
        return statistics.median(getattr(each, what) for each in found[engine])

    for engine, runs in found.items():
        to = SQL if engine in (SPARK, SQL) else KEYS_FIRST
        goal = {OURS: 0.8, SPARK: 3.0}.get(engine)
        seconds = median(engine, "seconds")
        ratio = median(to, "seconds") / seconds
        row = _row(f"{head}: {engine}", round(seconds, 1), "s", ratio, to, note, judged, goal)
        yield row | {
            "least": round(min(each.seconds for each in runs), 1),
            "most": round(max(each.seconds for each in runs), 1),
        }
    for engine in found:
        to = SQL if engine in (SPARK, SQL) else KEYS_FIRST
        cpu = median(engine, "cpu")
        name = f"{head}: {engine}, processor time"
        yield _row(name, round(cpu, 1), "s of a processor", median(to, "cpu") / cpu, to, note)
    for engine in found:
        memory = median(engine, "memory")
        name = f"{head}: {engine}, memory of all processes"
        yield _row(name, round(memory / 2**20), "MiB", memory / GIB, "1 GiB", note)


def _row(
    measurement: str,
    median: float,
    unit: str,
    ratio: float,
    to: str,
    note: str,
    judged: bool = False,
    target: float | None = 1.0,
) -> dict[str, Any]:
    return {
        "measurement": measurement,
        "median": median,
        "unit": unit,
        "ratio": round(ratio, 2),
        "to": to,
        "target": target if judged else None,
        "note": note,
    }


def once(engine: str, source: Path) -> Run:
    """One run on a copy of the log, whose archives are the same files: none is ever changed."""
    log, out = source.with_name(f"{source.name}-copy"), source.with_name(f"{source.name}-out")
    shutil.copytree(source, log, copy_function=_linked)
    try:
        if engine in PEERS:
            command = ["-m", "benchmarks.peers.newest", PEERS[engine], str(log), str(out)]
        else:
            name = "spark" if engine == SPARK else "local"
            command = ["-m", "rewrite_cli.cli", *REWRITE, name, log.as_uri()]
        seconds, cpu, memory, printed = _measured([sys.executable, *command])
        files = (
            [str(file) for file in out.rglob("*.parquet")]
            if engine in PEERS
            else [
                str(log / path)
                for cluster in json.loads(printed)["clusters"]
                for each in cluster["maps"]
                for path in each["files"]
            ]
        )
        return Run(seconds, cpu, memory, digest(files))
    finally:
        shutil.rmtree(log)
        shutil.rmtree(out, ignore_errors=True)


def _linked(source: str, target: str) -> None:
    if source.endswith(".parquet"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def digest(files: list[str]) -> tuple[int, int]:
    """The number of live entries, and a hash of all of them."""
    found = duckdb.execute(
        "select count(*), bit_xor(hash(map, key, value)) from read_parquet($files) "
        "where not deleted and (expires_at_ms = 0 or expires_at_ms > epoch_ms(now()))",
        {"files": files},
    ).fetchone()
    assert found is not None
    return found[0], found[1]


def _measured(command: list[str]) -> tuple[float, float, int, str]:
    """Seconds, processor time, memory and output of a command and all its processes."""
    start, memory, times = time.perf_counter(), 0, dict[int, float]()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as problems:
        process = subprocess.Popen(command, stdout=out, stderr=problems)
        while process.poll() is None:
            pids = list(_tree(process.pid))
            memory = max(memory, sum(map(_memory, pids)))
            for pid in pids:
                with suppress(OSError):  # it has ended
                    times[pid] = processor_seconds(pid)
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(EVERY_S, EVERY * (time.perf_counter() - start)))
        seconds = time.perf_counter() - start
        if process.returncode:
            problems.seek(0)
            raise RuntimeError(f"{command} ended with {process.returncode}:\n{problems.read()}")
        out.seek(0)
        return seconds, sum(times.values()), memory, out.read()


def _tree(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in thread.joinpath("children").read_text().split():
                yield from _tree(int(child))


def _memory(pid: int) -> int:
    """Bytes of the process. A page that several processes share counts once in all of them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    what, times = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for each in run(int(what), times) if what.isdigit() else of_log(Path(what).resolve(), times):
        print(json.dumps(each))
