"""Fixtures of all tests."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imap_wal.settings import Settings
from storage_backends.memory import MemoryStore, forget
from tests.belonging import modules_of
from tests.kit import effort, passed
from tests.kit.tiers import late_defects, noticing

effort.register()

# Without bytecode, each process that a test starts compiles hundreds of modules again: two seconds.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Spark's JVMs do not run long enough for the second compiler to pay off: without it, the tests
# need a fifth less processor time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Processes that the tests start inherit ignored signals: tests may run in the background of a
# shell, or under `nohup`.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--for", metavar="PACKAGE", help="only tests of a package: imap_wal/write")
    passed.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    if package := config.getoption("--for"):
        try:
            modules_of(package)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
    passed.start(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if " at 0x" in item.nodeid:  # another one in each worker of pytest-xdist
            raise pytest.UsageError(f"{item.nodeid}: give its parameters ids without an address")
    defects = noticing()
    effort.leave_out(items, defects)
    passed.leave_out(config, items)
    if config.option.collectonly and (late := late_defects(items, defects)):
        raise pytest.UsageError("defects that make test does not notice:\n" + "\n".join(late))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """While tests are collected, the garbage collector finds nothing, and needs a tenth of the
    time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """The garbage collector does not look through thousands of collected tests again and again:
    this saves a sixth of the processor time of quick tests."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Otherwise DuckDB reports at the end of the process what was not freed."""
    gc.unfreeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    package = config.getoption("--for")
    if not package or collection_path.suffix != ".py":
        return None
    return None if collection_path in modules_of(package) else True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.kit.spread import Groups

    return Groups(config, log)


def _process_state() -> dict[str, object]:
    log = logging.getLogger("imap_wal")
    return {
        "the level of the logger 'imap_wal'": log.level,
        "the handlers of the logger 'imap_wal'": list(log.handlers),
        "the working directory": os.getcwd(),
        "the handler of SIGINT": signal.getsignal(signal.SIGINT),
        "the handler of SIGTERM": signal.getsignal(signal.SIGTERM),
    }


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """After each test the state of the process is the same as before. Otherwise a later test that
    depends on it fails, and only in some orders of the tests."""
    before = _process_state()
    yield
    after = _process_state()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, f"this test changed (before, after): {changed}"


@pytest.fixture(scope="session", autouse=True)
def sparse_segments() -> Iterator[None]:
    """In /dev/shm, `posix_fallocate` fills the reserved space with zeros, which takes 20 ms of
    processor time at each open of a log. So with `TMPDIR=/dev/shm`, as in `make test`, segments of
    the default size are sparse files."""
    if not tempfile.gettempdir().startswith("/dev/shm"):
        yield
        return
    reserve, segment_bytes = os.posix_fallocate, Settings().segment_bytes

    def reserve_or_leave_a_hole(fd: int, offset: int, length: int) -> None:
        if (offset, length) == (0, segment_bytes):
            os.ftruncate(fd, length)
        else:
            reserve(fd, offset, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", reserve_or_leave_a_hole)
        yield


@pytest.fixture
def sigint() -> Iterator[None]:
    """SIGINT raises `KeyboardInterrupt`, also where the tests were started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The root of a log that does not exist yet."""
    return f"file://{tmp_path}/log"


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    """An empty store in this process's memory."""
    name = f"test-{os.urandom(8).hex()}"
    yield MemoryStore(name)
    forget(name)


@pytest.fixture
def seed() -> int:
    """The seed of a test's random choices; `IMAP_WAL_SEED=… pytest …` replays it. It is printed, so
    a failing test shows it."""
    chosen = int(os.environ.get("IMAP_WAL_SEED") or random.SystemRandom().randrange(2**32))
    print(f"replay with IMAP_WAL_SEED={chosen}")
    return chosen


@pytest.fixture(scope="session")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the members that tests start."""
    from tests.cluster.classes import compile_java

    return compile_java(tmp_path_factory.mktemp("java"))
