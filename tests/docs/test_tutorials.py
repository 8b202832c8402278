"""Every tutorial works as it is printed: its files are written, its commands run in order in one
shell, and they print what the page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.demo.cluster import free_ports
from tests.kit.effort import thorough

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)(?: title=\"([\w.]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END = "-- end of block"
TIMEOUT_S = 380

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Step:
    """Commands, and the lines that the page shows for them (none: the output is not shown)."""

    commands: str
    shown: tuple[str, ...]


def read(page: Path, places: dict[str, str]) -> tuple[dict[str, str], list[Step]]:
    """The files of a page by name, and its steps. `places` replaces texts of the page."""
    text = page.read_text(encoding="utf-8")
    for said, place in places.items():
        text = text.replace(said, place)
    files: dict[str, str] = {}
    steps: list[Step] = []
    for language, title, block in FENCE.findall(text):
        if title:
            assert title not in files, f"{page.name} has two files {title}"
            files[title] = block
        elif language == "sh":
            steps.append(Step(block, ()))
        elif language == "text":
            steps[-1] = Step(steps[-1].commands, tuple(block.splitlines()))
        else:
            raise AssertionError(
                f"{page.name}: a block of {language} has no title, so no test runs it"
            )
    return files, steps


def played(page: str, folder: Path) -> list[tuple[Step, str]]:
    """Each step with what it has printed."""
    port = free_ports(2)
    files, steps = read(
        ROOT / "docs/tutorials" / page,
        {"5701": str(port), "/tmp/imap-wal-tutorial": f"{folder}/shared"},
    )
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    programs = folder / "bin"
    programs.mkdir()
    for name, command in {"python": "", "imap-wal": "-m rewrite_cli.cli"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        (programs / name).chmod(0o755)
    script = "\n".join(f"{step.commands}\necho '{END}'" for step in steps)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("IMAP_WAL_")},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    shell = subprocess.Popen(
        ["bash", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        printed, problems = shell.communicate(timeout=TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(
                shell.pid, signal.SIGKILL
            )  # the processes of the page end with it, also if a step hangs
        shell.wait()
    outputs = printed.split(f"{END}\n")
    assert len(outputs) == len(steps) + 1, (
        f"the shell ended with {shell.returncode}:\n{printed}\n{problems}"
    )
    return list(zip(steps, outputs[:-1], strict=True))


def check(page: str, folder: Path) -> None:
    for step, output in played(page, folder):
        printed = iter(output.splitlines())
        for line in step.shown:
            pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
            assert any(pattern.fullmatch(found) for found in printed), (
                f"{step.commands}shows no further line like {line!r}:\n{output}"
            )


@thorough
def test_the_embedded_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    check("embedded.md", tmp_path)


@thorough
def test_the_tutorial_of_streams_prints_what_it_shows(tmp_path: Path) -> None:
    check("streams.md", tmp_path)


@thorough
@pytest.mark.cluster
def test_the_cluster_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    check("cluster.md", tmp_path)


@thorough
@pytest.mark.spark
def test_the_spark_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    check("spark.md", tmp_path)
