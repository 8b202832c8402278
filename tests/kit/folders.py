"""Folders of a local log."""

from __future__ import annotations

from pathlib import Path


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "writer.lock"
    }
