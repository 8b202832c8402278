"""Plays `make torture`'s schedules in pieces, and adds up those that were played with no failure.

python -m tests.simulation.pieces --schedules 200000          the next 200,000
python -m tests.simulation.pieces --minutes 30 --workers 1    as many as fit into 30 minutes
python -m tests.simulation.pieces --sum                       what was played so far

Each piece begins with the seed after the last one that was played, and is one line in the record:
the commit, the seeds, how many schedules, which of them failed. Schedules of another commit count
for that commit: the sums are printed for each, newest last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation.many import explore
from tests.simulation.scenarios import OPEN, SCENARIOS

RECORD = Path("out/simulation.jsonl")
SEEDS_A_PIECE = 1000
"""Seeds of each scenario in one piece."""
GOAL = 5_000_000


@dataclass(frozen=True)
class Piece:
    """One line of the record. `first` to `last`: seeds, of each scenario. `failed`: as
    `--scenario` and `--seed` take them."""

    commit: str
    first: int
    last: int
    scenarios: int
    schedules: int
    steps: int
    seconds: int
    failed: tuple[str, ...] = ()


def read(record: Path) -> list[Piece]:
    lines = record.read_text().splitlines() if record.exists() else []
    found = []
    for line in filter(None, lines):
        data = json.loads(line)
        found.append(Piece(**{**data, "failed": tuple(data["failed"])}))
    return found


def following(pieces: Iterable[Piece], commit: str) -> int:
    """The first seed that was not played on this commit."""
    return max((piece.last for piece in pieces if piece.commit == commit), default=0) + 1


def sums(pieces: Iterable[Piece]) -> Iterator[str]:
    """A line for each commit. Failed schedules are not counted."""
    by_commit: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_commit.setdefault(piece.commit, []).append(piece)
    for commit, own in by_commit.items():
        failed = [each for piece in own for each in piece.failed]
        played = sum(piece.schedules for piece in own) - len(failed)
        calls = sum(piece.steps for piece in own)
        seeds = (
            f"seeds {min(piece.first for piece in own):,} to {max(piece.last for piece in own):,}"
        )
        yield (
            f"{commit}: {played:,} schedules of {GOAL:,} with no failure "
            f"({seeds}, {calls:,} calls, {sum(piece.seconds for piece in own):,} s); "
            f"{len(failed)} failed {' '.join(failed)}"
        ).rstrip()


def play(commit: str, first: int, seeds: int, workers: int) -> Piece:
    names = [name for name in SCENARIOS if name not in OPEN]
    start = time.monotonic()
    tally = explore(names, first, seeds * len(names), workers, failures_max=sys.maxsize)
    spent = round(time.monotonic() - start)
    failed = tuple(f"{each.scenario}:{each.seed}" for each in tally.failures)
    last = first + seeds - 1
    return Piece(commit, first, last, len(names), tally.schedules, tally.steps, spent, failed)


def commit_here() -> str:
    """The commit of this tree, marked where files were changed since."""
    command = ["git", "describe", "--always", "--dirty=+changes", "--abbrev=10", "--exclude=*"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.simulation.pieces")
    parser.add_argument("--schedules", type=int, default=0, help="stop after about this many")
    parser.add_argument(
        "--minutes", type=float, default=0, help="stop with the first piece that ends later"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes; default: one a processor"
    )
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--sum", action="store_true", help="print the sums only")
    chosen = parser.parse_args()
    pieces = read(chosen.record)
    if not chosen.sum:
        if not chosen.schedules and not chosen.minutes:
            parser.error("give --schedules, --minutes or --sum")
        commit, first = commit_here(), following(pieces, commit_here())
        names = [name for name in SCENARIOS if name not in OPEN]
        until = time.monotonic() + chosen.minutes * 60 if chosen.minutes else float("inf")
        left = -(-chosen.schedules // len(names)) if chosen.schedules else sys.maxsize
        chosen.record.parent.mkdir(parents=True, exist_ok=True)
        while left > 0 and time.monotonic() < until:
            piece = play(commit, first, min(left, SEEDS_A_PIECE), chosen.workers)
            with chosen.record.open("a") as record:
                record.write(json.dumps(asdict(piece)) + "\n")
            pieces.append(piece)
            first, left = piece.last + 1, left - (piece.last - piece.first + 1)
            print(*sums(each for each in pieces if each.commit == commit), flush=True)
    else:
        print("\n".join(sums(pieces)) or f"nothing is recorded in {chosen.record}")
    return 1 if any(piece.failed for piece in pieces) else 0


if __name__ == "__main__":
    sys.exit(main())
