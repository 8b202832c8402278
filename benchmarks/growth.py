"""How seconds and memory of the engines of `benchmarks.pipeline` grow with the log: one run of each
engine on the archives of each size. The results of all engines must be equal.

`python -m benchmarks.growth SIZE ... [--save FILE]`: a size is a number of million records, or the
folder of a log of `benchmarks.realistic_log`. Prints the rows, and writes them as a result for
`benchmarks.publish`. 100 million records need 26 GiB for the log, and about as much for copies and
the temporary files of the engines.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.pipeline import GIB, KEYS_FIRST, OURS, SPARK, SQL, Run, once, rows_in
from benchmarks.realistic_log import write

PEER = {OURS: KEYS_FIRST, KEYS_FIRST: KEYS_FIRST, SPARK: SQL, SQL: SQL}


def of_log(log: Path) -> Iterator[dict[str, Any]]:
    """The rows of one size.

    Raises:
        RuntimeError: the results differ. An engine that fails has the value 0 instead.
    """
    found: dict[str, Run] = {}
    failed: dict[str, str] = {}
    for engine in PEER:
        try:
            found[engine] = once(engine, log)
        except RuntimeError as error:
            failed[engine] = str(error).strip().splitlines()[-1][:200]
    if len({each.digest for each in found.values()}) != 1:
        raise RuntimeError(f"the results differ: {found}")
    size = sum(file.stat().st_size for file in log.rglob("*.parquet")) / GIB
    head, note = f"{rows_in(log) / 1e6:.3g} M records", f"{size:.2f} GiB of archives"
    for unit in ("s", "MiB"):
        for engine, peer in PEER.items():
            values = {
                name: each.seconds if unit == "s" else each.memory / 2**20
                for name, each in found.items()
            }
            known = engine in values and peer in values
            yield {
                "measurement": f"{head}: {engine}",
                "median": round(values[engine], 1) if engine in values else 0,
                "unit": unit,
                "ratio": round(values[peer] / values[engine], 2) if known else 0,
                "to": peer,
                "target": None,
                "note": f"failed: {failed[engine]}" if engine in failed else note,
            }


def of_size(size: str) -> list[dict[str, Any]]:
    if not size.isdigit():
        return list(of_log(Path(size).resolve()))
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        records = int(size) * 1_000_000
        write(log, records, records // 3)
        return list(of_log(log))


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    arguments.add_argument("sizes", nargs="+", metavar="SIZE")
    arguments.add_argument("--save", type=Path, metavar="FILE")
    options = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    for size in options.sizes:
        rows += [{"part": "growth", **row} for row in of_size(size)]
        for row in rows[-2 * len(PEER) :]:
            print(json.dumps(row), flush=True)
        if options.save is not None:
            result = {"machine": machine(), "quick": False, "rows": rows}
            options.save.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
