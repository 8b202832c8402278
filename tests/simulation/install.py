"""Puts the world's locks and time in place of the real ones, in the modules of the log."""

from __future__ import annotations

import importlib
import itertools
import logging
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.simulation.threads import Threading, Time

PACKAGES = ("imap_wal", "rewrite_cli")
MODULES = ("storage_backends.lease", "storage_backends.objects", "storage_backends.hdfs")
_LEFT_OUT = ("spark", "demo", "cluster", "playback", "flights", "picture")


class _Secrets:
    """Tokens that nobody drew before in this run."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def token_hex(self, size: int = 16) -> str:
        return f"{next(self._numbers):0{2 * size}x}"


def modules() -> list[ModuleType]:
    found = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        found.append(package)
        for info in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not any(part in info.name for part in _LEFT_OUT):
                found.append(importlib.import_module(info.name))
    found += [importlib.import_module(name) for name in MODULES]
    return found


@contextmanager
def installed() -> Iterator[None]:
    """Simulations run inside of this."""
    replaced: list[tuple[Any, str, Any]] = []

    def put(where: Any, name: str, value: Any) -> None:
        replaced.append((where, name, getattr(where, name)))
        setattr(where, name, value)

    real = {"threading": Threading, "time": Time, "secrets": _Secrets()}
    for module in modules():
        for name, fake in real.items():
            if isinstance(getattr(module, name, None), ModuleType):
                put(module, name, fake)
    writer = sys.modules["imap_wal.writer"]
    put(writer, "holder_text", lambda what: what)
    memory = Path("/dev/shm")
    put(tempfile, "tempdir", str(memory) if memory.is_dir() else tempfile.gettempdir())
    logger = logging.getLogger("imap_wal")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for where, name, value in reversed(replaced):
            setattr(where, name, value)
