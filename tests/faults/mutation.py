"""A deliberate defect, and whether the test that is named for it notices it, with as many examples
as in `make test`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (
    "storage_backends",
    "imap_wal",
    "pyspark_imap_wal",
    "rewrite_cli",
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
    quick: bool = False


def survives(mutation: Mutation, folder: Path) -> str:
    """ "" when the test caught it, else what happened. `folder` is empty."""
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "java")
            )
        else:
            shutil.copy(source, folder / name)
    path = folder / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        return f"its text is {text.count(mutation.old)} times in {mutation.file}"
    path.write_text(text.replace(mutation.old, mutation.new))
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--hypothesis-profile",
            "ci",
            "--timeout",
            "500",
            mutation.test,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    return (
        ""
        if run.returncode == 1 and "1 failed" in run.stdout
        else f"pytest ended with {run.returncode}:\n{run.stdout[-1500:]}{run.stderr[-500:]}"
    )
