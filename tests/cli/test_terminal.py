"""What people see: tables in 80 columns, the locale C, completion, the man page."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import imap_wal
from rewrite_cli.cli import COMMANDS
from tests.cli.conftest import Run
from tests.kit.effort import every, first

CLI = [sys.executable, "-m", "rewrite_cli.cli"]
ROOT = Path(__file__).parents[2]


def on_a_terminal(*words: str) -> tuple[int, str]:
    """Exit code and output of a command on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [*CLI, *words], stdout=theirs, stderr=subprocess.DEVNULL, env=environment
        )
        os.close(theirs)
        read = b""
        while True:
            try:
                part = terminal.read(65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            read += part
        return process.wait(20), read.decode().replace("\r", "")


@every(3)
@pytest.mark.parametrize(
    "name",
    first(["stat", "ls --files", "verify", "ls", "verify --all", "archive --dry-run", "restore",
           "query", "prune --dry-run", "rewrite --dry-run", "diff --as-of 0s"], 3),
)  # fmt: skip
def test_tables_fit_80_columns_with_file_and_advice(tmp_path: Path, log: Path, name: str) -> None:
    """A long map name, a long file name, and damage with advice."""
    with imap_wal.open(log.parents[4], node="n2") as store:
        store.map("a-rather-long-name-of-a-map-" * 2)["key"] = "value " * 40
        store.archive()
    if name.startswith("verify"):
        newest = min(log.glob("*.wal"))
        content = bytearray(newest.read_bytes())
        content[content.index(b"k5")] ^= 0xFF
        newest.write_bytes(content)
    command, *options = name.split()
    code, shown = on_a_terminal(command, str(log.parents[4]), *options)
    assert code in (0, 3), shown
    for line in shown.split("\n"):
        # A name on a line of its own is not broken: it can be copied.
        assert len(line) <= 80 or (line.startswith("  ") and len(line.split()) == 2), shown
    joined = "".join(shown.split())
    if name.startswith("verify"):
        assert newest.name in joined
        assert "imap-walrepair" in joined
    if name == "ls --files":
        assert all(file.name in joined for file in log.iterdir())


@every(7)
@pytest.mark.parametrize(
    "words",
    first(
        ["ls", "dump", "query 'from größe'", "get --map größe schlüssel", "ls --namespace ü",
         "ls --files", "stat", "dump -o json", "tail", "verify", "archive --dry-run",
         "rewrite --dry-run", "prune --dry-run", "export", "export --format csv", "restore",
         "query", "get --map größe weg -o json", "doctor", "diff --as-of 0s",
         "drop --map größe --dry-run", "claim", "export --map grösse"], 5),
)  # fmt: skip
def test_the_locale_c_gets_ascii(tmp_path: Path, words: str) -> None:
    import shlex

    with imap_wal.open(tmp_path / "log", node="knöten") as store:
        store.map("größe")["schlüssel"] = "wert – €"
        store.map("größe")["weg"] = 1
        del store.map("größe")["weg"]
    command, *options = shlex.split(words)
    codes = []
    for locale in ("C", "C.UTF-8"):
        ended = subprocess.run(
            [*CLI, command, str(tmp_path / "log"), *options],
            capture_output=True,
            check=False,
            timeout=60,
            env={**os.environ, "LC_ALL": locale, "PYTHONIOENCODING": ""},
        )
        codes.append(ended.returncode)
        printed = ended.stdout + ended.stderr
        assert b"Traceback" not in printed and b"bug in imap-wal" not in printed
        if locale == "C" and command != "export":  # files are UTF-8 everywhere
            assert printed.isascii(), printed.decode()
    assert codes[0] == codes[1]


@every(2)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_without_unicode_is_no_error(tmp_path: Path, encoding: str) -> None:
    with imap_wal.open(tmp_path) as store:
        store.map("m")["ключ é"] = "–"
    ended = subprocess.run(
        [*CLI, "dump", str(tmp_path)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert ended.returncode == 0, ended.stderr
    assert b"m[\\u043a" in ended.stdout
    assert ended.stdout.decode(encoding).rstrip().endswith("= -")


def test_every_help_is_ascii(run: Run) -> None:
    for name in COMMANDS:
        assert run(name, "--help").out.isascii(), name
    assert run("--help").out.isascii()


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    script = (
        'eval "$(imap-wal completion bash)"; '
        "for words in 'imap-wal ba' 'imap-wal backup --kee' 'imap-wal dump -o j'; do "
        "COMPREPLY=(); COMP_WORDS=($words); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
        '_imap_wal_completion imap-wal; echo "${COMPREPLY[@]}"; done'
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert ended.stdout.splitlines() == ["backup backup-restore", "--keep", "json"], ended.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(run: Run, shell: str) -> None:
    ended = run("completion", shell)
    assert ended.code == 0
    assert "_IMAP_WAL_COMPLETE" in ended.out


def test_completion_imports_no_command() -> None:
    program = (
        "import os, sys, rewrite_cli.cli as c\n"
        "os.environ.update(_IMAP_WAL_COMPLETE='bash_complete', COMP_WORDS='imap-wal d', "
        "COMP_CWORD='1')\n"
        "try:\n    c.main([])\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name.startswith('rewrite_cli.commands.') for name in sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "plain,dump" in ended.stdout


def test_the_man_page_is_that_of_the_commands() -> None:
    """`python docs/hooks/manual.py` writes it. Made in another process: click remembers the help
    option of a command from its first use, which another test may have made without the group."""
    made = "import runpy; print(runpy.run_path('docs/hooks/manual.py')['page'](), end='')"
    page = subprocess.run(
        [sys.executable, "-c", made], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs/man/imap-wal.1").read_text(encoding="ascii") == page
    assert all(f"imap\\-wal {name}".replace("-", "\\-").replace("\\\\", "\\")
               in page for name in COMMANDS if "-" not in name)  # fmt: skip
