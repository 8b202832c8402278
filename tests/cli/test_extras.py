"""The core install is small; an error names the extra that a feature needs."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import imap_wal
from rewrite_cli.commands.service.doctor import EXTRAS
from storage_backends.extras import MissingExtra, needs
from storage_backends.registry import backend_of
from tests.kit.effort import thorough

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = ("storage_backends", "imap_wal", "rewrite_cli", "pyspark_imap_wal")
DISTRIBUTION = {
    "alibabacloud_credentials": "alibabacloud-credentials",
    "alibabacloud_oss_v2": "alibabacloud-oss-v2",
    "dogpile": "dogpile-cache",
    "google_crc32c": "google-crc32c",
    "hazelcast": "hazelcast-python-client",
    "key_value": "py-key-value-aio",
    "opentelemetry": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
    "zmq": "pyzmq",
}
"""Modules whose distribution has another name."""
GUARDED = {
    "imap_wal/agent/": "agent",
    "imap_wal/parquet/": "archive",
    "imap_wal/read/parquet_scan.py": "archive",
    "imap_wal/sql/": "archive",
    "pyspark_imap_wal/": "spark",
    "rewrite_cli/": "cli",
    "storage_backends/hdfs.py": "hdfs",
    "storage_backends/objects.py": "fsspec",
    "storage_backends/oss.py": "oss",
}
"""Modules that are imported only after, or within, `needs(extra)`."""
OWN_ERROR = {"imap_wal/security/encryption.py": "encryption"}
"""Modules that raise an error of their own, which names the extra."""
OF_VALUES = {("imap_wal/typed.py", "pydantic"), ("imap_wal/typed.py", "numpy")}
"""Libraries of a user's own values: a program that has such a value has the library."""


def requirements(extra: str) -> set[str]:
    """The distributions of an extra, and of those that it includes."""
    found: set[str] = set()
    for text in PROJECT["optional-dependencies"][extra]:
        each = Requirement(text)
        found |= (
            set().union(*map(requirements, each.extras)) if each.name == "imap-wal" else {each.name}
        )
    return found


CORE = {Requirement(text).name for text in PROJECT["dependencies"]}


def foreign_imports(
    tree: ast.AST, extras: tuple[str, ...] = ()
) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Each module of another distribution that is imported, its line, and the `needs` around it."""
    for node in ast.iter_child_nodes(tree):
        around = extras
        if isinstance(node, ast.With):
            calls = [ast.unparse(each.context_expr) for each in node.items]
            around += tuple(call[7:-2] for call in calls if call.startswith("needs('"))
        names: list[tuple[str, int]] = []
        if isinstance(node, ast.Import):
            names = [(each.name, node.lineno) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "", node.lineno)]
        for name, line in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in PACKAGES:
                yield top, line, around
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from foreign_imports(node, around)


def test_every_import_is_of_the_core_or_names_its_extra() -> None:
    unnamed = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        guards = tuple(
            extra for front, extra in (GUARDED | OWN_ERROR).items() if name.startswith(front)
        )
        for module, line, around in foreign_imports(ast.parse(path.read_text(encoding="utf-8"))):
            given = CORE.union(*map(requirements, (*guards, *around)))
            if DISTRIBUTION.get(module, module) not in given and (name, module) not in OF_VALUES:
                unnamed.append(f"{name}:{line} imports {module}")
    assert unnamed == []


def test_the_doctor_and_the_stores_name_extras_that_exist() -> None:
    assert [
        package for package, extra in EXTRAS.items() if package not in requirements(extra)
    ] == []
    for url in ("s3://b", "gs://b", "abfs://b", "oss://b", "webhdfs://n", "unknown://x"):
        backend = backend_of(url)
        assert backend.library in requirements(backend.extra)


def test_only_a_missing_library_is_a_missing_extra() -> None:
    with (
        pytest.raises(MissingExtra, match=r"no_such_library.*pip install 'imap-wal\[archive\]'"),
        needs("archive"),
    ):
        import no_such_library.part  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(MissingExtra, match="inner"), needs("outer"), needs("inner"):
        raise ModuleNotFoundError(name="x")
    with pytest.raises(ImportError, match="broken") as raised, needs("archive"):
        raise ImportError("broken")
    assert not isinstance(raised.value, MissingExtra)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel and its core, without any extra."""
    folder = tmp_path_factory.mktemp("core")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    assert wheel.stat().st_size < 2 * 1024 * 1024
    run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    programs = folder / "venv" / "bin"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(programs / "python"),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        str(wheel),
    )
    packages = Path(
        run(
            str(programs / "python"), "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"
        ).strip()
    )
    for name in CORE:
        for file in importlib.metadata.files(name) or ():
            if file.parts[0] != "..":
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(file.locate())
    return programs


def run(*command: str, cwd: Path | None = None, code: int = 0) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    ended = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


EMBEDDED = """
import asyncio, sys, imap_wal

url = sys.argv[1]
with imap_wal.open(url) as store:
    orders = store.map("orders")
    orders.update({"a": 1, "b": [2], "c": None})
    orders.put("d", 4, ttl=3600)
    assert orders.pop("a") == 1
    store.map("other")["x"] = 1
    store.map("other").clear()

async def more():
    async with imap_wal.aopen(url) as store:
        await store.map("orders").set("e", 5)

asyncio.run(more())
with imap_wal.open(url) as store:
    assert dict(store.map("orders")) == {"b": [2], "c": None, "d": 4, "e": 5}
    assert dict(store.map("other")) == {}
    try:
        store.archive()
    except ImportError as error:
        print(error)
try:
    imap_wal.open("s3://bucket/maps")
except imap_wal.StorageUnavailable as error:
    print(error)
"""


@thorough
@pytest.mark.cluster
def test_core_install_keeps_maps_and_names_missing_extras(core: Path, tmp_path: Path) -> None:
    printed = run(str(core / "python"), "-c", EMBEDDED, str(tmp_path / "log"), cwd=tmp_path)
    archive, s3 = printed.strip().splitlines()
    assert "pip install 'imap-wal[archive]'" in archive
    assert "pip install 'imap-wal[s3]'" in s3


EVERYTHING = """
import dataclasses, multiprocessing, os, signal, sys
from pathlib import Path

import imap_wal

folder = Path(sys.argv[1])


@dataclasses.dataclass
class Order:
    amount: int
    tags: list[str]


def size() -> int:
    return sum(path.stat().st_size for path in (folder / "log").rglob("*") if path.is_file())


def killed() -> None:
    store = imap_wal.open(folder / "killed")
    store.map("m")["a"] = 1
    os.kill(os.getpid(), signal.SIGKILL)


def worker(number: int) -> None:
    with imap_wal.connect(folder / "shared") as store:
        for _ in range(50):
            store.map("hits").add("home")
        store.map("orders", key=str, value=Order)[str(number)] = Order(number, ["x"])


def started(target, *words) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=each) for each in words]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def main() -> None:
    with imap_wal.open(folder / "log") as store:
        m = store.map("m")
        for number in range(1000):
            m.update((key % 100, number) for key in range(1000))
            m.update({key: (number, "x" * 100) for key in range(100)})
        sizes = [size()]
    sizes.append(size())
    for _ in range(3):
        with imap_wal.open(folder / "log") as store:
            assert len(store.map("m")) == 100
            store.map("m")[0] = "again"
            store.compact()
        sizes.append(size())
    assert max(sizes[2:]) < 2**20, sizes

    started(killed, ())
    with imap_wal.open(folder / "killed") as store:
        assert store.map("m")["a"] == 1

    started(worker, *[(number,) for number in range(4)])
    with imap_wal.connect(folder / "shared") as store:
        assert store.map("hits")["home"] == 200
        assert store.map("orders", key=str, value=Order)["3"] == Order(3, ["x"])

    with imap_wal.open(folder / "jobs") as store:
        jobs = store.queue("jobs")
        jobs.put("a job")
        job = jobs.take()
        assert job.value == "a job" and jobs.ack(job)
        watch = store.map("m").watch()
        store.map("m")["a"] = 1
        assert next(watch).new == 1
        watch.close()
        with imap_wal.open(folder / "jobs", read_only=True) as reader:
            assert reader.map("m")["a"] == 1

    try:
        imap_wal.open(folder / "archives")
    except imap_wal.ImapWalError as error:
        print(error)


if __name__ == "__main__":
    main()
"""


@thorough
@pytest.mark.cluster
def test_core_install_does_all_without_a_warning(core: Path, tmp_path: Path) -> None:
    """A million overwrites, a kill, four processes, a queue, a watch, types. Parquet archives are
    one clear error."""
    with imap_wal.open(tmp_path / "archives") as store:
        store.map("m")["a"] = 1
        store.archive()
    (tmp_path / "everything.py").write_text(EVERYTHING, encoding="utf-8")
    words = (str(core / "python"), "-W", "error", "everything.py", str(tmp_path))
    (error,) = run(*words, cwd=tmp_path).strip().splitlines()
    assert "pip install 'imap-wal[archive]'" in error


@thorough
@pytest.mark.cluster
def test_core_install_of_the_command_says_what_to_install(core: Path, tmp_path: Path) -> None:
    printed = run(str(core / "imap-wal"), "--help", cwd=tmp_path, code=1)
    assert (
        printed == "error: the library click is not installed; install it with: pip install "
        "'imap-wal[cli]'\n"
    )
