"""Puts the world's locks and time in place of the real ones, in the modules of the log. It also
makes runs quick without changing what they do: manifests are packed, and a value of the same bytes
or of the same listing is made once."""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, TypeVar

import pyarrow as pa
from greenlet import getcurrent
from msgpack import Packer, unpackb

from imap_wal import entry, format, layout
from imap_wal.clock import SeededRandomness
from imap_wal.manifest import cluster, node, older, store
from imap_wal.segment import listing
from imap_wal.settings import choose
from tests.simulation import values
from tests.simulation.threads import Threading, Time
from tests.simulation.world import BASE_MS, Task

PACKAGES = ("imap_wal", "rewrite_cli")
MODULES = ("storage_backends.lease", "storage_backends.objects", "storage_backends.hdfs")
REMEMBERED = 300
T = TypeVar("T")
_LEFT_OUT = ("spark", "demo", "cluster", "playback", "flights", "picture")


class _Secrets:
    """Tokens that were not drawn before in this run."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def token_hex(self, size: int = 16) -> str:
        return f"{next(self._numbers):0{2 * size}x}"


class _Randomness:
    """The randomness of the process that runs, for callers that were passed none."""

    _alone = SeededRandomness(0)

    def _own(self) -> Any:
        task = getcurrent()
        return task.process.randomness if isinstance(task, Task) else self._alone

    def token(self) -> bytes:
        return bytes(self._own().token())

    def name(self) -> str:
        return str(self._own().name())


class _Clock:
    """The clock of the process that runs, for callers that were passed none."""

    def __init__(self, offset_ms: int = 0) -> None:
        pass

    def now_ms(self) -> int:
        task = getcurrent()
        return int(task.process.clock.now_ms()) if isinstance(task, Task) else BASE_MS

    def monotonic(self) -> float:
        task = getcurrent()
        return float(task.process.clock.monotonic()) if isinstance(task, Task) else 0.0


class _Json:
    """The module `json` of manifests: as msgpack, which has the same values and takes a tenth of
    the time. `tests/unit` looks at their JSON."""

    dumps = staticmethod(json.dumps)

    @staticmethod
    def loads(text: Any) -> Any:
        return json.loads(text) if text[:1] != _PACKED else unpackb(text[1:], strict_map_key=False)


_PACKED = b"\0"
_packer = Packer()


def _with_checksum(body: Any) -> bytes:
    """`manifest.with_checksum`, with the nonce for a checksum: simulations damage no bytes;
    `tests/faults` does."""
    return _PACKED + bytes(_packer.pack({"checksum": str(body["nonce"]), **body}))


def _read_once(decode: Any) -> Any:
    """`ManifestLog._decode`, which parses the same text once."""
    known: dict[tuple[bytes, type], Any] = {}

    def decoded(self: Any, number: int) -> Any:
        text = self._store.read(self._path(number))
        found = known.get((text, self._kind))
        if found is None:
            if len(known) >= REMEMBERED:  # those of one run; a new run has others
                known.clear()
            found = known[text, self._kind] = decode(_At(self, text), number)
        return found

    return decoded


class _Text:
    def __init__(self, text: bytes) -> None:
        self._text = text

    def read(self, path: str) -> bytes:
        return self._text


class _At:
    """A manifest log whose text is in memory."""

    def __init__(self, log: Any, text: bytes) -> None:
        self._kind, self._path, self._store = log._kind, log._path, _Text(text)


def _once(make: Callable[..., T]) -> Callable[..., T]:
    """Makes a value of a listing once for each listing: in listings, a file that did not change is
    the same value."""
    known: dict[Any, tuple[Any, T]] = {}

    def made(files: Iterable[Any], *more: Any) -> T:
        if type(files) is not list:
            files = list(files)
        key = (tuple(map(id, files)), more)
        found = known.get(key)
        if found is None:
            if len(known) >= REMEMBERED:
                known.clear()
            found = known[key] = files, make(files, *more)  # the files: an id is of one value
        return found[1]

    return made


@_once
def _numbered(files: list[Any]) -> dict[int, Any]:
    return {int(file.path.rpartition("/")[2].removesuffix(".json")): file for file in files}


def _files(self: Any) -> dict[int, Any]:
    """`ManifestLog._files`. A folder of manifests has no other files here."""
    return _numbered(self._store.list(self.folder))


def _rows(decode: Any) -> Any:
    """`entry.rows`: the same bytes are unpacked once."""
    known = lru_cache(REMEMBERED)(lambda payload: tuple(decode(payload)))
    return lambda payload, *_: iter(known(bytes(payload)))


def _chosen(choose: Any) -> Any:
    """`settings.choose`, once for each choice."""
    known: dict[Any, Any] = {}

    def chosen(given: Any, others: Any = ()) -> Any:
        key = tuple(given.items())
        if key not in known:
            known[key] = choose(given, others)
        return known[key]

    return chosen


@cache
def modules() -> tuple[ModuleType, ...]:
    found: list[ModuleType] = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        found.append(package)
        names = (info.name for info in pkgutil.walk_packages(package.__path__, f"{name}."))
        found += [
            importlib.import_module(each)
            for each in names
            if not any(part in each for part in _LEFT_OUT)
        ]
    return (*found, *(importlib.import_module(name) for name in MODULES))


def _quicken(put: Callable[[Any, str, Any], None]) -> None:
    """Replace what would take most of the time of a simulation: the same bytes and names are
    decoded once, and manifests are written as msgpack."""
    sort = _once(listing.sorted_out)
    for module in modules():
        if hasattr(module, "sorted_out"):
            put(module, "sorted_out", sort)
    for name, fake in {
        "with_checksum": _with_checksum,
        "checksum_of_rest": lambda text: "",
        "canonical_json": lambda body: str(body.get("nonce", "")),
        "_checksum": lambda canonical: canonical,
        "json": _Json,
    }.items():
        real_one = getattr(store, name)
        for module in (store, node, cluster):
            if getattr(module, name, None) is real_one:
                put(module, name, fake)
    put(store.ManifestLog, "_decode", _read_once(store.ManifestLog._decode))
    put(store.ManifestLog, "_files", _files)
    for name in (
        "parse_wal_path",
        "parse_writer_path",
        "parse_archive_path",
        "parse_opened_path",
        "parse_claim_path",
        "recovered_by",
        "original_path",
        "cluster_folder",
        "node_folder",
        "wal_path",
    ):
        put(layout, name, lru_cache(100_000)(getattr(layout, name)))
    put(format, "decode_header", lru_cache(REMEMBERED)(format.decode_header))
    put(entry, "rows", _rows(entry.rows))
    put(older, "epoch_of", lru_cache(100_000)(older.epoch_of))


@contextmanager
def installed() -> Iterator[None]:
    """Simulations run inside of this."""
    replaced: list[tuple[Any, str, Any]] = []

    def put(where: Any, name: str, value: Any) -> None:
        replaced.append((where, name, getattr(where, name)))
        setattr(where, name, value)

    real: dict[str, Any] = {"threading": Threading, "time": Time, "secrets": _Secrets()}
    given: dict[str, Any] = {"SystemRandomness": _Randomness, "SystemClock": _Clock}
    for module in modules():
        for name, fake in given.items():
            if hasattr(module, name):
                put(module, name, fake)
        for name, fake in real.items():
            if isinstance(getattr(module, name, None), ModuleType):
                put(module, name, fake)
    put(sys.modules["imap_wal.embedded.opening"], "choose", _chosen(choose))
    _quicken(put)
    put(sys.modules["imap_wal.rewrite.run"], "memory_max_bytes", lambda: 0)
    from tests.simulation import agents, executors, parquet

    for where, name, value in (
        *values.patches(modules()),
        *executors.patches(),
        *agents.patches(),
        *parquet.patches(),
    ):
        put(where, name, value)
    pa.set_cpu_count(1)
    writer = sys.modules["imap_wal.write.opening"]
    put(writer, "holder_text", lambda what, clock: what)
    # A separate thread would not wait for its turn.
    put(sys.modules["imap_wal.segment.reader"], "READERS", 1)
    put(sys.modules["imap_wal.retention.overlap"], "THREADS", 0)
    logger = logging.getLogger("imap_wal")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for where, name, value in reversed(replaced):
            setattr(where, name, value)
