"""File systems of a test."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mounted(folder: Path, megabytes: int) -> bool:
    """Whether `folder` is now a disk of this size. That needs root, and tmpfs."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    return (
        bool(shutil.which("mount"))
        and not subprocess.run(command, check=False, capture_output=True).returncode
    )


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int = 4) -> Iterator[Path | None]:
    """A disk of this size; None where it cannot be mounted."""
    if not mounted(folder, megabytes):
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def needed_disk(folder: Path, megabytes: int = 4) -> Iterator[Path]:
    """A disk of this size. Where it cannot be mounted, the test is skipped."""
    with small_disk(folder, megabytes) as disk:
        if disk is None:
            pytest.skip("mount needs root")
        yield disk
