"""A program for `strace -e inject=…`: plays the work of `tests.faults.workload` some rounds on a
real local log whose system calls fail now and then.

    python -m tests.faults.straced ROOT ROUNDS

Prints how many steps failed and how many operations were acknowledged; ends with an error if
something was lost, a deleted key returned, or a step failed with an error that is not of
imap-wal."""

from __future__ import annotations

import os
import sys

from storage_backends.local import LocalStore
from tests.faults.workload import WORK, Life, Reference

if __name__ == "__main__":
    root, rounds = sys.argv[1], int(sys.argv[2])
    reference = Reference()
    life = Life(LocalStore(root), reference, preallocate=True, segment_bytes=2000)
    failures = 0
    for number in range(rounds):
        failures += life.play_through(
            [
                (kind, *(f"{number}.{each}" if each == "a" else each for each in what))
                for kind, *what in WORK
            ]
        )
    life.reopen_when_it_can()
    print(failures, reference.acknowledged, len(os.listdir(root)))
