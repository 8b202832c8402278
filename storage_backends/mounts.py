"""Finds the file system of a directory, in the kernel's table of mounts."""

from __future__ import annotations

import os
import re
from pathlib import Path

NETWORK = re.compile(r"nfs\d*|cifs|smb\d*|ceph|lustre|glusterfs|fuse\..*|9p|afs")
"""File systems whose cache may still show a file that another client has removed."""

MOUNTS = Path("/proc/self/mountinfo")


def is_network(folder: str, mounts: Path = MOUNTS) -> bool:
    """Whether the folder, or the nearest existing one above it, is on a network file system. False
    if the kernel has no such table."""
    path = os.path.realpath(folder)
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    nearest: tuple[int, str] = (-1, "")
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        # The table has \040 for a blank.
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields[4])
        if (path == point or path.startswith(f"{point.rstrip('/')}/")) and len(point) >= nearest[0]:
            nearest = len(point), kinds[0]
    return bool(NETWORK.fullmatch(nearest[1]))
