"""Every Python block and every command in README and docs runs as it is printed, against a log made
for it (only the paths are replaced)."""

from __future__ import annotations

import os
import re
import shelve
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import duckdb
import msgpack
import pytest
from click.testing import CliRunner
from markdown.extensions.toc import slugify

import imap_wal
from imap_wal.clock import SystemClock
from rewrite_cli import cli
from tests.kit.effort import every, thorough
from tests.kit.pages import titled
from tests.kit.seatunnel_files import change, write
from tests.storage.oss_server import running_oss
from tests.storage.s3_gateway import running_moto

ROOT = Path(__file__).parents[2]
ALL_PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES = [page for page in ALL_PAGES if page.parent.name != "tutorials"]
"""The blocks of a tutorial belong together: test_tutorials.py runs them."""
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
PROGRAMS = ("imap-wal", ".venv/bin/imap-wal", "make")
# These start services or run for a minute; here, only their options are parsed.
ONLY_PARSED = {("node", "start"), ("agent",), ("serve",), ("stream", "serve"), ("keys",)}


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, (indent, found, text) in enumerate(
            FENCE.findall(page.read_text(encoding="utf-8")), 1
        ):
            if found == language:
                yield (
                    f"{page.relative_to(ROOT)}#{number}",
                    re.sub(f"^{indent}", "", text, flags=re.MULTILINE),
                )


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for _, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in ("", "sh", "bash", "console"):
                for line in re.sub(r"\\\n\s*", "", text).splitlines():
                    command = line.strip().removeprefix("$ ").partition(" #")[0].strip()
                    if command.split(" ")[0] in PROGRAMS:
                        yield f"{page.relative_to(ROOT)}: {command}", command


PYTHON, COMMANDS = dict(blocks("python")), dict(commands())
ON_S3 = {name for name, text in PYTHON.items() if '"s3://' in text}
ON_OSS = {name for name, text in PYTHON.items() if '"oss://' in text}


def elsewhere(text: str, root: Path) -> str:
    return re.sub(r"/tmp/|/var/lib/(?=maps)|/mnt/(?=backups)", f"{root}/", text)


@pytest.mark.parametrize("name", [name for name in PYTHON if name not in ON_S3 | ON_OSS])
def test_each_python_block_runs(name: str, tmp_path: Path, runner: subprocess.Popen[str]) -> None:
    program = write_block(name, tmp_path)
    assert runner.stdin is not None
    assert runner.stdout is not None
    runner.stdin.write(f"{program}\n")
    runner.stdin.flush()
    code = runner.stdout.readline()
    assert code == "0\n", Path(f"{program}.errors").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("programs.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@thorough
def test_python_blocks_run_on_s3(tmp_path: Path) -> None:
    """tests/storage/test_s3.py verifies S3 in `make test`."""
    assert ON_S3
    with running_moto(tmp_path) as service:
        options = service.options
        for name in ON_S3:
            run(
                name,
                tmp_path,
                AWS_ENDPOINT_URL=options["endpoint_url"],
                AWS_ACCESS_KEY_ID=options["key"],
                AWS_SECRET_ACCESS_KEY=options["secret"],
            )


@thorough
def test_python_blocks_run_on_oss(tmp_path: Path) -> None:
    """tests/storage/test_oss.py verifies OSS in `make test`."""
    assert ON_OSS
    with running_oss() as service:
        for name in ON_OSS:
            run(name, tmp_path, **service.environment)


def write_block(name: str, tmp_path: Path) -> Path:
    program = tmp_path / "block.py"  # a file: the children of multiprocessing import it
    program.write_text(elsewhere(PYTHON[name], tmp_path), encoding="utf-8")
    return program


def run(name: str, tmp_path: Path, **environment: str) -> None:
    program = write_block(name, tmp_path)
    ended = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr


def test_the_page_about_pytest_passes(tmp_path: Path) -> None:
    """Each file on it, as pytest runs it for a user."""
    files = titled(ROOT / "docs/how-to/testing.md")
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    ended = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        timeout=240,
    )
    assert ended.returncode == 0, ended.stdout
    assert f"{text.count('def test_')} passed" in ended.stdout


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log whose entries are a month old, so that it has a state of yesterday."""
    clock = SystemClock(-30 * 86_400_000)
    with imap_wal.open(f"file://{tmp_path}/maps", node="n1", clock=clock) as store:
        store.map("orders").update({"42": {"state": "new"}, "43": {"state": "new"}})
        store.map("orders")["42"] = {"state": "paid"}
    return tmp_path


def before(*words: str) -> None:
    """A command that the page has before the one that is tested."""
    with CliRunner().isolation(), pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    assert not ended.value.code


def make_sources(folder: Path) -> None:
    with shelve.open(str(folder / "sessions")) as sessions:
        sessions["ann"] = 1
    with sqlite3.connect(folder / "app.sqlite") as database:
        database.execute("CREATE TABLE unnamed (key TEXT PRIMARY KEY, value BLOB)")
    with pytest.importorskip("diskcache").Cache(folder / "cache") as cache:
        cache["/home"] = "Home"
    write(folder / "seatunnel-imap/zeta", "engine_runningJobInfo", 7, change(1, "job", 1))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_runs(name: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: the start of another one takes longer than most commands."""
    program, *words = shlex.split(elsewhere(COMMANDS[name], log))
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[0] in targets
        return
    if any(tuple(words[: len(only)]) == only for only in ONLY_PARSED) or {
        "--add-token",
        "--follow",
    } & {*words}:
        parse(words)
        return
    if "spark" in words:
        pytest.skip("tests/cli runs it with Spark")
    if words[0] == "doctor" and "--agent" in words:
        del words[words.index("--agent") : words.index("--agent") + 2]  # no agent listens there
    if words[0] == "backup" and "--key-file" in words:
        del words[words.index("--key-file") : words.index("--key-file") + 2]  # no agent is asked
    if words[0] in ("prune", "drop", "forget-node", "upgrade"):
        assert {"--dry-run", "--yes"} & set(words), (
            "it asks for confirmation: in a script it ends with exit code 2"
        )
    monkeypatch.chdir(log)
    if any(word.startswith("oss://") for word in words):
        with running_oss() as service:
            for variable, value in service.environment.items():
                monkeypatch.setenv(variable, value)
            assert command_code(words) == (0, "")
        return
    if "--iceberg" in words:
        from tests.kit.tables import iceberg_catalog

        iceberg_catalog(log, monkeypatch)
    if words[0] == "backup-restore":
        before("backup", f"{log}/maps", f"{log}/backups/maps")
    if words[0] == "forget-node" and "--lose" not in words:
        before("rewrite", f"{log}/maps")
    if words[0] == "publish":
        before("rewrite", f"{log}/maps")
    if words[0] == "import":
        make_sources(log)
    if words[0] == "stream" and words[1] != "create":
        before("stream", "create", f"{log}/bank", "--partitions", "8")
    assert command_code(words) == (0, "")


def command_code(words: list[str]) -> tuple[int, str]:
    """The exit code of a command, and what it wrote to stderr if that is not 0."""
    with CliRunner().isolation() as (_, errors, _), pytest.raises(SystemExit) as ended:
        cli.main(words)
    code = int(ended.value.code or 0)
    return code, errors.getvalue().decode() if code else ""


def parse(words: list[str]) -> None:
    """Parse the words as the command line does, without running the command."""
    command: click.Command = cli.group
    context = click.Context(command, info_name="imap-wal", **command.context_settings)
    while isinstance(command, click.Group):
        child = command.get_command(context, words[0])
        assert child is not None, words
        command, words = child, words[1:]
    command.make_context("command", list(words), parent=context)


@every(3)
@pytest.mark.parametrize("name", ["embedded.py", "many_at_once.py", "parquet.py"])
def test_example_runs_twice(name: str, tmp_path: Path) -> None:
    where = str(tmp_path / "log") if name == "parquet.py" else f"file://{tmp_path}/log"
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, str(ROOT / "examples" / name), where],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr


def test_inner_links_have_targets() -> None:
    for page in ALL_PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
            if "://" in target:
                continue
            path = page.parent / target if target else page
            assert path.exists(), f"{page.relative_to(ROOT)} links to {target}"
            if anchor and path.suffix == ".md":
                assert anchor in anchors_of(path.resolve()), (
                    f"{page.relative_to(ROOT)} links to {target}#{anchor}"
                )


@cache
def anchors_of(page: Path) -> set[str]:
    """Of its headings, as the site names them, and of `id`s."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading) for heading in headings]
    return {slugify(heading, "-") for heading in plain} | set(re.findall(r'id="([^"]+)"', text))


COMMENTED = (
    ".yaml",
    ".yml",
    ".toml",
    ".xml",
    ".sh",
    ".tpl",
    "Makefile",
    "Containerfile",
    ".ci/run",
)


def test_only_tables_exceed_100_columns() -> None:
    """Prose, code, and comments of configuration have at most 100 columns. Ruff and the Java tests
    check their languages."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [ROOT / name for name in listed.stdout.splitlines()]
    pages = {file for file in files if file.suffix == ".md"}
    commented = [file for file in files if str(file).endswith(COMMENTED)]
    assert set(ALL_PAGES) <= pages
    assert len(commented) > 30
    for file in (*pages, *commented):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            start = line.lstrip()
            checked = (
                not start.startswith("|") if file in pages else start.startswith(("#", "<!--"))
            )
            assert len(line) <= 100 or not checked or re.search(r"\S{90}", line), (
                f"{file.relative_to(ROOT)}:{number} has {len(line)} columns"
            )


def test_the_query_of_the_format_page_finds_what_is_live(tmp_path: Path) -> None:
    """It sees archives alone: of two nodes, with deleted, expired and cleared keys."""
    (query,) = (text for name, text in blocks("sql") if "format.md" in name)
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url, node="n1") as store:
        orders = store.map("orders")
        orders.update(dict.fromkeys(range(5), "cleared"))
        orders.clear()
        store.archive()
        orders.update({number: number for number in range(3, 9)})
        orders.update({"": "an empty key", "none": None})
        orders.put("long", "lives", ttl=1000)
        del orders[4]
        store.archive()
    with imap_wal.open(url, node="n2", clock=SystemClock(-10_000)) as store:
        orders = store.map("orders")
        orders[6] = "of n2"
        del orders[7]
        orders.put(8, "expired", ttl=5)
        orders["again"] = 1
        del orders["again"]
        orders["again"] = 2
        store.archive()
    with imap_wal.open(url, node="n3") as store:
        live = dict(store.map("orders").items())
    assert live.keys() == {3, 5, 6, "", "none", "long", "again"}
    rows = duckdb.execute(query.replace("…", f"{tmp_path}/log/*/*")).fetchall()
    assert {msgpack.unpackb(key): msgpack.unpackb(value) for key, value in rows} == live
    assert len(rows) == len(live)
