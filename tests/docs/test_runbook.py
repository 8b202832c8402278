"""What the runbook shows step by step is what the commands print, at real agents."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from imap_wal.agent.config import AgentConfig
from tests.agent.harness import Plugin, config, plugin, report, serving
from tests.cli.conftest import Run, run
from tests.kit.disks import needed_disk
from tests.kit.effort import thorough
from tests.support import eventually

__all__ = ["run"]

PAGE = Path(__file__).parents[2] / "docs/runbook.md"
URL, ENDPOINT = "file:///var/lib/maps", "ipc:///run/imap-wal/agent.sock"
MASKED = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9][0-9.,:TZ-]*")


@dataclass(frozen=True)
class Case:
    """The agent that `doctor` asks."""

    settings: AgentConfig


def shown(title: str) -> list[tuple[str, str]]:
    """The commands under this title, with their outputs."""
    entry = PAGE.read_text(encoding="utf-8").partition(f"\n### {title}\n")[2].partition("\n###")[0]
    blocks = re.findall(
        r"^ *```\n *(imap-wal [^\n]*)\n(.*?)^ *```", entry, re.MULTILINE | re.DOTALL
    )
    assert blocks, title
    return blocks


def masked(text: str) -> str:
    """Without numbers, times and ids, and on one line."""
    text = re.sub(r"[0-9.]+ (ms|s|min|h|d|B|[KMG]iB)\b( [0-9]+ (s|min|h)\b)?", "0", text)
    return " ".join(MASKED.sub("0", text).split())


def three(folder: Path) -> dict[str, AgentConfig]:
    """Three nodes with entries, whose agents were stopped."""
    nodes = ("n1", "n2", "n3")
    settings = {n: config(folder, n, lifetime_timeout_s=2, start_timeout_s=0.1) for n in nodes}
    with ExitStack() as running:
        for each in settings.values():
            running.enter_context(serving(each))
        for node, each in settings.items():
            with plugin(each, uuid=node, member=node) as member:
                assert member.put(**{f"{node}{number}": "v" for number in range(5)})[0] == "ack"
    return settings


@contextmanager
def waiting(settings: AgentConfig) -> Iterator[Plugin]:
    with plugin(settings, greet=False, cluster_id="cluster-2", uuid="new") as member:
        eventually(lambda: "did not get the log" in str(member.asked()), "the cluster waits")
        yield member


@contextmanager
def scaled_down(folder: Path) -> Iterator[Case]:
    nodes = three(folder)
    with serving(nodes["n2"]), serving(nodes["n3"]), waiting(nodes["n2"]):
        yield Case(nodes["n2"])


@contextmanager
def clocks_differ(folder: Path) -> Iterator[Case]:
    one, two = (config(folder, node, lifetime_timeout_s=2) for node in ("n1", "n2"))
    late = replace(two, clock_offset_ms=-720_000)
    with serving(one) as agent, serving(late), plugin(one):
        eventually(lambda: "n2" in agent.snapshot().clock_doubt, "the clocks were compared")
        yield Case(one)


@contextmanager
def never_durable(folder: Path) -> Iterator[Case]:
    one = config(folder)
    with serving(one), plugin(one) as member:
        member.put(a="1")
        used = report(durable=["orders"], unnamed=["carts"])
        assert member.client.ask("beat", 0, used)[0][0] == "beat"
        yield Case(one)


@contextmanager
def full(folder: Path) -> Iterator[Case]:
    with needed_disk(folder / "disk", 40) as disk:
        one = replace(config(folder, url=f"file://{disk}/log"), reserve_bytes=4 << 20)
        with serving(one) as agent, plugin(one) as member:
            for number in range(100):
                assert member.put(**{f"k{number % 10}": "v" * 50_000})[0] == "ack"
            with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
            while member.put(k="v" * 50_000)[0] == "ack":
                pass
            eventually(lambda: agent.snapshot().disk_full, "the agent says it")
            yield Case(one)


@contextmanager
def lost(folder: Path) -> Iterator[Case]:
    nodes = three(folder)
    for node in ("n1", "n2"):
        shutil.rmtree(folder / "log/default/c/nodes" / node)
    with serving(nodes["n3"]), plugin(nodes["n3"]) as member:
        eventually(lambda: member.stat()["merge_error"], "the merge fails")
        yield Case(nodes["n3"])


CASES: dict[str, Callable[[Path], AbstractContextManager[Case]]] = {
    "A full restart after a scale-down": scaled_down,
    "The clocks of two machines differ": clocks_differ,
    "A map is empty because it was never durable": never_durable,
    "Two nodes are lost": lost,
}


@pytest.mark.parametrize("title", CASES)
def test_the_runbook_shows_what_commands_print(run: Run, tmp_path: Path, title: str) -> None:
    with CASES[title](tmp_path) as case:
        compare(run, case, title)


@thorough
def test_the_runbook_shows_a_full_disk(run: Run, tmp_path: Path) -> None:
    with full(tmp_path) as case:
        compare(run, case, "The disk of one agent is full")


def compare(run: Run, case: Case, title: str) -> None:
    """Run the commands under this title, in order."""
    url, endpoint = case.settings.url, case.settings.endpoint
    for command, output in shown(title):
        words = shlex.split(command.replace(URL, url).replace(ENDPOINT, endpoint))[1:]
        ended = run(*words)
        printed = (ended.out + ended.err).replace(url, URL).replace(endpoint, ENDPOINT)
        place = 0
        for part in filter(None, map(str.strip, output.split("…"))):
            place = masked(printed).find(masked(part), place)
            assert place >= 0, f"{command}\nprints\n{printed}\nand not\n{part}"
