"""A deliberate defect, and the test that must notice it. `working_copy.py` tries it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (
    "storage_backends",
    "imap_wal",
    "pyspark_imap_wal",
    "rewrite_cli",
    "charts",
    "tests",
    "pyproject.toml",
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old` occurs once in `file`. When it is replaced by `new`, `test` fails."""

    name: str
    file: str
    old: str
    new: str
    test: str
