"""The status page of an agent, in a browser and without one."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.access.http_address import HttpAddress
from imap_wal.agent.monitoring.listener import HttpListener
from imap_wal.agent.monitoring.pages import StatusPage, listener
from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.agent.monitoring.status.facts import MergeRate, sections
from imap_wal.agent.own_disk.uploads import UploadStatistics
from imap_wal.clock import SystemClock
from imap_wal.format import Position
from imap_wal.read.merge import MergeProgress, MergeStatistics
from imap_wal.worker import WorkerState
from storage_backends.reserve import DiskState
from tests.agent.harness import config, plugin, serving
from tests.kit.browser import Browser, browser
from tests.monitoring.http import ask, get
from tests.monitoring.snapshots import snapshot
from tests.support import FakeClock, eventually

HOSTILE = "</script><img src=x onerror=\"document.title='run'\"><b>&amp;\u202e\n{{7*7}}"
LONG = "w" * 300
PICTURES = Path(__file__).parents[2] / "docs" / "images"


class Shown:
    """A listener whose snapshot a test replaces."""

    def __init__(self) -> None:
        self.now = snapshot()
        self.server: HttpListener = listener("127.0.0.1:0", lambda: self.now, SystemClock())
        self.server.worker.start()
        eventually(lambda: self.server.port, "it listens")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/"

    def close(self) -> None:
        self.server.close()


@pytest.fixture
def shown() -> Iterator[Shown]:
    with closing(Shown()) as made:
        yield made


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(chromium: Browser) -> Browser:
    chromium.scripts(allowed=True)
    chromium.dark(dark=False)
    chromium.size(1280, 900)
    return chromium


def text(page: Browser) -> str:
    return str(page.run("document.querySelector('main').innerText"))


def busy() -> AgentSnapshot:
    """A cluster that restores, with some trouble."""
    return snapshot(
        node="node-b",
        cluster="orders",
        uptime_seconds=42.0,
        unmerged_bytes=3 << 20,
        merge=MergeProgress(14, 40, 3 << 30, 8 << 30, 12_400_000),
        merged=MergeStatistics(0, 50_000_000, 9 << 30, 75.0, 8_100_000),
        positions={
            "node-a": str(Position(12, 3, 4711, 0)),
            "node-b": str(Position(9, 1, 88, 2)),
            "node-c": str(Position(2, 7, 5, 0)),
        },
        disks={"root": DiskState(6 << 30, 100 << 30, 64 << 20, 64 << 20)},
        errors={"not-ready": 17},
    )


# without a browser
def test_page_and_events_show_the_state(shown: Shown) -> None:
    shown.now = busy()
    html = get(shown.server.port, "/").body.decode()
    event = get(shown.server.port, "/events").body.decode()
    assert event.startswith("retry: 2000\ndata: [") and event.endswith("]\n\n")
    facts = [fact for section in json.loads(event.split("data: ")[1]) for fact in section["facts"]]
    assert len(facts) > 20
    for fact in facts:
        assert f"<bdi>{fact['name']}</bdi>" in html
        assert f"<bdi>{fact['value']}</bdi>" in html


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "good"),
        ({"waiting_seconds": 5.0}, "warning"),
        ({"merge_error": "MissingNode: n3"}, "warning"),
        ({"settling": 3}, "warning"),
        ({"settling": 3, "settling_running_s": 900.0}, "warning"),
        ({"merged": MergeStatistics()}, "warning"),
        ({"merged": MergeStatistics(), "members": 0}, "good"),
        (
            {"threads": {"imap-wal-connections": WorkerState(alive=False, error="", failures=1)}},
            "bad",
        ),
    ],
)
def test_state_is_green_only_if_no_map_waits(changes: dict[str, Any], level: str) -> None:
    """Also where /readyz answers 200, so that an orchestrator continues."""
    state = sections(snapshot(**changes), 0)[0].facts[0]
    assert (state.name, state.level) == ("State", level)
    assert (state.value == "ready") == (level == "good")


def test_each_part_of_a_hostile_name_is_escaped() -> None:
    made = StatusPage(
        lambda: snapshot(
            node=HOSTILE,
            cluster=HOSTILE,
            namespace=HOSTILE,
            durability=HOSTILE,
            positions={HOSTILE: HOSTILE},
            errors={HOSTILE: 1},
            threads={HOSTILE: WorkerState(True, HOSTILE, 1)},
            disks={HOSTILE: DiskState(1, 2, 3, 0)},
        ),
        FakeClock(),
    )
    html = made.html().decode()
    assert "<img" not in html and html.count("</script>") == 1
    event = made.event().decode()
    assert event.count("\n") == 3, "a line break in a name ends no field"
    assert json.loads(event.split("data: ")[1])[0]["facts"][2]["value"] == HOSTILE


def test_no_text_of_an_error_is_shown() -> None:
    secret = "StorageError: s3://user:password@host"
    maintenance = replace(snapshot().maintenance, archive_error=secret, retention_error=secret)
    for changes in (
        {"failure": secret},
        {"threads": {"t": WorkerState(False, secret, 1)}},
        {"maintenance": maintenance},
        {"upload": UploadStatistics(error=secret, failures=1)},
    ):
        made = StatusPage(lambda changes=changes: snapshot(**changes), FakeClock())
        assert b"password" not in made.html() + made.event()
        assert b"warning" in made.html() or b"bad" in made.html()


def test_rate_and_time_left_come_from_two_looks() -> None:
    clock = FakeClock()
    rate = MergeRate(clock)

    def merging(done: int, total: int = 1000) -> AgentSnapshot:
        return snapshot(
            merge=MergeProgress(1, 2, done, total, 5), merged=MergeStatistics(keys=None)
        )

    assert rate.of(merging(100)) == 0
    clock.advance(2)
    assert rate.of(merging(500)) == 200
    found = dict(facts_of(sections(merging(500), 200)))
    assert found["Merge"].endswith("200 B/s, 2 s left")
    later = replace(merging(10, 300), merged=MergeStatistics(merges=1))
    found = dict(facts_of(sections(later, 0)))
    assert found["Merge"].startswith("complete; what was appended since is being merged: 3%")
    clock.advance(1)
    assert rate.of(merging(1000)) == 0, "complete"
    assert rate.of(merging(10, 50)) == 0, "another merge"


def test_uploads_that_fail_are_shown_as_errors() -> None:
    late = UploadStatistics(5 << 30, 7200.0, 7, 70 << 20, 240, "Unavailable: s3://bucket: closed")
    found = sections(snapshot(upload=late, errors={}, peers_refused=0), 0)
    warnings = {
        (section.title, fact.name): fact.value
        for section in found
        for fact in section.facts
        if fact.level == "warning"
    }
    disks = "Disks and maintenance"
    waiting = warnings[disks, "Only on the own disk"]
    assert waiting == "5.0 GiB, the oldest entries for 2 h 0 min"
    assert warnings[disks, "Uploads"].endswith("240 runs failed; the last one failed: Unavailable")
    assert warnings["Errors", "Uploads"] == "Unavailable, 240 failures"
    assert "No errors" not in dict(facts_of(found))


def test_maps_that_are_not_durable_are_counted() -> None:
    """Without their names, which are for readers with a key."""
    maps = {"durable": 3, "transient": 1, "unnamed": 2, "structures": 1}
    found = sections(snapshot(maps=maps), 0)
    facts = {fact.name: fact for section in found for fact in section.facts}
    assert facts["Maps in use"].value == "3 durable, 1 transient"
    assert facts["Maps that no list names"].level == "warning"
    assert facts["Maps that no list names"].value.startswith("2, not durable")
    assert facts["Structures besides maps"].value.startswith("1, not durable")


def test_uploads_without_failures_are_no_errors() -> None:
    healthy = snapshot(upload=UploadStatistics(5000, 3.5, 7, 70_000), errors={}, peers_refused=0)
    found = dict(facts_of(sections(healthy, 0)))
    assert found["Only on the own disk"].endswith(", the oldest entries for 4 s")
    assert found["No errors"] == "since the start"
    shared = dict(facts_of(sections(replace(healthy, upload=None), 0)))
    assert "Uploads" not in shared and "Only on the own disk" not in shared


def test_the_next_restart_is_forecast_from_the_merges() -> None:
    now = snapshot(merged=MergeStatistics(1, 5, 1000, 2.0, 5), unmerged_bytes=500)
    assert dict(facts_of(sections(now, 0)))["The next restart"].startswith(
        "reads 1.5 KiB in about 3 s"
    )


def facts_of(found: Any) -> list[tuple[str, str]]:
    return [(fact.name, fact.value) for section in found for fact in section.facts]


def test_the_policy_permits_nothing_from_elsewhere(shown: Shown) -> None:
    with closing(socket.create_connection(("127.0.0.1", shown.server.port), 30)) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        head = b"".join(iter(lambda: peer.recv(65536), b"")).partition(b"\r\n\r\n")[0].decode()
    assert "Content-Security-Policy: default-src 'none'; script-src 'sha256-" in head
    assert "unsafe" not in head and "frame-ancestors 'none'" in head
    assert ask(shown.server.port, b"POST / HTTP/1.1\r\n\r\n").status == 405


def test_events_for_many_browsers_are_made_once_a_second() -> None:
    """No connection stays open."""
    made: list[float] = []
    clock = FakeClock()

    def observe() -> AgentSnapshot:
        made.append(clock.monotonic())
        return snapshot()

    with closing(listener("127.0.0.1:0", observe, clock)) as server:
        server.worker.start()
        eventually(lambda: server.port, "it listens")
        for _ in range(20):
            assert get(server.port, "/events").status == 200
        assert len(made) == 1
        eventually(lambda: not server._open, "all are closed")


def test_an_agent_shows_its_nodes_and_their_positions(tmp_path: Path) -> None:
    settings = replace(config(tmp_path), http_address="127.0.0.1:0")
    with serving(settings), plugin(settings) as member:
        port = int(
            eventually(
                lambda: int(member.stat()["http_address"].rpartition(":")[2] or 0), "it listens"
            )
        )
        assert member.put(a="1")[0] == "ack"
        eventually(lambda: b"n1 (this node)" in get(port, "/").body, "the first merge is over")
        eventually(lambda: b" entries, " in get(port, "/events").body, "the entry is counted")


# in a browser
def test_the_page_follows_the_state_without_a_reload(shown: Shown, page: Browser) -> None:
    page.open(shown.url)
    page.run("window.same = 1")
    eventually(lambda: page.run("document.getElementById('live').textContent") == "Live.", "events")
    shown.now = snapshot(appends=1, failure="NoSpace: x", positions={"n9": "(1, 1, 1, 1)"})
    eventually(lambda: "the log failed" in text(page), "the failure")
    assert "n9" in text(page)

    def restoring() -> bool:
        shown.now = replace(busy(), merge=MergeProgress(14, 40, next(read), 8 << 30, 12_400_000))
        return "node-c" in text(page) and " left" in text(page)

    read = itertools.count(3 << 30, 1 << 20)
    eventually(restoring, "the restore")
    assert page.run("window.same") == 1
    assert page.run("document.querySelectorAll('progress').length") >= 3
    assert page.complaints() == []


def test_a_hostile_name_runs_nothing(shown: Shown, page: Browser) -> None:
    shown.now = snapshot(node=HOSTILE, positions={HOSTILE: HOSTILE}, errors={HOSTILE: 3})
    page.open(shown.url)
    eventually(lambda: page.run("document.getElementById('live').textContent") == "Live.", "events")
    assert page.run("document.querySelectorAll('img, b').length") == 0
    assert "onerror" in text(page), "it is shown as text"
    assert page.run("document.title") != "run"
    page.run(
        "document.body.append(Object.assign(document.createElement('script'),"
        "{textContent: 'window.injected = 1'}))"
    )
    assert page.run("window.injected") is None, "the policy refuses other scripts"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_everything_fits_the_width_and_can_be_read(
    shown: Shown, page: Browser, width: int, dark: bool
) -> None:
    page.size(width, 900)
    page.dark(dark)
    shown.now = snapshot(node=LONG, positions={LONG: LONG}, errors={LONG: 3}, failure="x: y")
    page.open(shown.url)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run(CONTRAST) >= 4.5
    back = page.run("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(13, 17, 23)") == dark


CONTRAST = """(() => {
  const light = (color) => {
    const [r, g, b] = color.match(/\\d+/g).map((part) => part / 255)
      .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = light(getComputedStyle(document.body).backgroundColor);
  const texts = document.querySelectorAll("h1, h2, dt, dd, header p, button");
  return Math.min(...[...texts].map((each) => {
    const [low, high] = [light(getComputedStyle(each).color), back].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
})()"""


def test_the_button_works_by_keyboard(shown: Shown, page: Browser) -> None:
    page.open(shown.url)
    page.press("Tab")
    assert page.run("document.activeElement.id") == "pause"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Enter")
    assert page.run("document.getElementById('live').textContent") == "Paused."
    page.press("Enter")
    eventually(lambda: page.run("document.getElementById('live').textContent") == "Live.", "events")


def test_without_scripts_the_state_is_shown_once(shown: Shown, page: Browser) -> None:
    page.scripts(allowed=False)
    shown.now = busy()
    page.open(shown.url)
    assert "node-c" in text(page)
    assert page.run("document.getElementById('pause').hidden") is True
    assert page.run("document.getElementById('live').textContent").startswith("The state when")


def test_an_agent_that_comes_back_is_followed_again(page: Browser) -> None:
    with closing(Shown()) as first:
        port = first.server.port
        page.open(first.url)
        eventually(
            lambda: page.run("document.getElementById('live').textContent") == "Live.", "events"
        )
    with closing(
        HttpListener(HttpAddress("127.0.0.1", port), first.server._pages, SystemClock())
    ) as again:
        first.now = snapshot(positions={"n8": "(1, 1, 1, 1)"})
        again.worker.start()
        eventually(lambda: "n8" in text(page), "it asks again")


@pytest.mark.skipif("IMAP_WAL_PICTURES" not in os.environ, reason="writes the pictures of the docs")
def test_pictures_of_the_documentation(shown: Shown, page: Browser) -> None:
    read = itertools.count(3 << 30, 1 << 20)

    def restoring(done: int) -> bool:
        shown.now = replace(busy(), merge=MergeProgress(14, 40, done, 8 << 30, 12_400_000))
        return " left" in text(page)

    for name, width, height, dark in (("wide", 1280, 640, False), ("narrow", 390, 1180, True)):
        page.size(width, height)
        page.dark(dark)
        shown.now = busy()
        page.open(shown.url)
        eventually(lambda: restoring(next(read)), "rate and time")
        page.picture(PICTURES / f"status-{name}.png")
