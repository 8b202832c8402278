"""Puts the world's locks and time in place of the real ones, in the modules of the log. And what
makes a run quick without changing what it does: the same Parquet bytes are decoded once, and
manifests are written without the indent that keeps Python from its quick JSON encoder."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import logging
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pyarrow as pa
from greenlet import getcurrent

from imap_wal import manifest
from imap_wal.clock import SeededRandomness
from tests.simulation.threads import Threading, Time
from tests.simulation.world import BASE_MS, Task

PACKAGES = ("imap_wal", "rewrite_cli")
MODULES = ("storage_backends.lease", "storage_backends.objects", "storage_backends.hdfs")
_LEFT_OUT = ("spark", "demo", "cluster", "playback", "flights", "picture")


class _Secrets:
    """Tokens that were not drawn before in this run."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def token_hex(self, size: int = 16) -> str:
        return f"{next(self._numbers):0{2 * size}x}"


class _Randomness:
    """For those who were handed none: that of the process that acts."""

    _alone = SeededRandomness(0)

    def _own(self) -> Any:
        task = getcurrent()
        return task.process.randomness if isinstance(task, Task) else self._alone

    def token(self) -> bytes:
        return bytes(self._own().token())

    def name(self) -> str:
        return str(self._own().name())


class _Clock:
    """The same."""

    def __init__(self, offset_ms: int = 0) -> None:
        pass

    def now_ms(self) -> int:
        task = getcurrent()
        return int(task.process.clock.now_ms()) if isinstance(task, Task) else BASE_MS

    def monotonic(self) -> float:
        task = getcurrent()
        return float(task.process.clock.monotonic()) if isinstance(task, Task) else 0.0


class _Parsed(dict[str, Any]):
    """A manifest as it was read, with what its checksum must be."""

    crc = ""


class _Json:
    """The module, without indents; the same text is parsed once."""

    JSONDecodeError = json.JSONDecodeError
    known: ClassVar[dict[bytes, tuple[dict[str, Any], str]]] = {}

    @classmethod
    def loads(cls, text: bytes) -> Any:
        found = cls.known.get(text)
        if found is None:
            value = json.loads(text)
            if not isinstance(value, dict):
                return value
            body = {name: value[name] for name in value if name != "checksum"}
            if len(cls.known) > 10_000:
                cls.known.clear()
            found = cls.known[bytes(text)] = value, _real_checksum(body)
        parsed = _Parsed(found[0])
        parsed.crc = found[1]
        return parsed

    @staticmethod
    def dumps(value: Any, *, indent: int | None = None, **more: Any) -> str:
        return json.dumps(value, **more)


_real_checksum = manifest._checksum


def _checksum(body: Any) -> str:
    return body.crc if isinstance(body, _Parsed) else _real_checksum(body)


def _asdict(value: Any) -> Any:
    """`dataclasses.asdict` without its deep copies."""
    kind = type(value)
    if kind in (int, str, bool, bytes, float, type(None)):
        return value
    if hasattr(kind, "__dataclass_fields__"):
        return {name: _asdict(getattr(value, name)) for name in kind.__dataclass_fields__}
    if kind in (tuple, list):
        return [_asdict(each) for each in value]
    if kind is dict:
        return {name: _asdict(each) for name, each in value.items()}
    return value  # a position


class _One:
    """A store of one file whose bytes are at hand."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open_input(self, path: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _remembered(batches: Any) -> Any:
    """`imap_wal.archive.batches`, which decodes the same bytes once. One call to the store, as
    ever."""
    known: dict[tuple[bytes, Any], list[Any]] = {}

    def remembered(
        store: Any, path: str, columns: list[str] | None = None, rows_max: int = 8192, **more: Any
    ) -> Iterator[Any]:
        with store.open_input(path) as source:
            data = source.read()
        key = (data, (tuple(columns or ()), rows_max, tuple(more.items())))
        found = known.get(key)
        if found is None:
            found = list(batches(_One(data), path, columns, rows_max, **more))
            if len(known) > 5000:
                known.clear()
            known[key] = found
        yield from found

    return remembered


def modules() -> list[ModuleType]:
    found = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        found.append(package)
        names = (info.name for info in pkgutil.walk_packages(package.__path__, f"{name}."))
        found += [
            importlib.import_module(each)
            for each in names
            if not any(part in each for part in _LEFT_OUT)
        ]
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
    given = {"SystemRandomness": _Randomness, "SystemClock": _Clock}
    for module in modules():
        for name, fake in given.items():
            if hasattr(module, name):
                put(module, name, fake)
        for name, fake in real.items():
            if isinstance(getattr(module, name, None), ModuleType):
                put(module, name, fake)
    archive = sys.modules["imap_wal.archive"]
    remembered = _remembered(archive.batches)
    for module in modules():
        if getattr(module, "batches", None) is archive.batches and module is not archive:
            put(module, "batches", remembered)
    put(archive, "batches", remembered)
    put(manifest, "json", _Json)
    put(manifest, "_checksum", _checksum)
    put(manifest, "asdict", _asdict)
    from tests.simulation.members import patches

    for where, name, value in patches():
        put(where, name, value)
    pa.set_cpu_count(1)
    writer = sys.modules["imap_wal.writer"]
    put(writer, "holder_text", lambda what: what)
    put(
        sys.modules["imap_wal.segment"], "READERS", 1
    )  # a thread of its own would not wait for its turn
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
