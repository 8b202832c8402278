"""The built site: it builds without a warning, and fits a screen and a phone."""

from __future__ import annotations

import http.server
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.kit.browser import installed
from tests.kit.effort import thorough

ROOT = Path(__file__).parents[2]
SCREEN, TELEPHONE = 1280, 390
"""Widths in pixels."""
LOOKED_AT = (
    "",
    "tutorials/embedded",
    "operations",
    "architecture",
    "cli",
    "python",
    "glossary",
    "performance",
)
PICTURES = ROOT / "out/site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all tests of this file."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",  # with --quiet it would count no warning
        "--site-dir",
        str(folder),
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=150
    )
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> str:
    return installed()


class _Site(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and puts the measurements of each page into `found`."""

    found: queue.Queue[dict[str, list[str]]] = queue.Queue()

    def do_POST(self) -> None:  # the name that http.server calls
        measured = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.found.put(json.loads(measured))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site over HTTP on this machine, with the page that measures."""
    shutil.copy(Path(__file__).with_name("fits.html"), site)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Site, directory=str(site))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def command(browser: str, *arguments: str) -> list[str]:
    """It reads pages of this machine only, so it may run without a sandbox (root has none)."""
    return [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments]


def pages(site: Path) -> list[str]:
    return sorted(
        f"/{page.parent.relative_to(site).as_posix()}/".replace("/./", "/")
        for page in site.rglob("index.html")
    )


@thorough
def test_the_site_builds_and_every_page_is_in_the_navigation(site: Path) -> None:
    """Or, for a decision, on the page of all decisions."""
    front = (site / "index.html").read_text(encoding="utf-8")
    decisions = (site / "decisions/index.html").read_text(encoding="utf-8")
    for page in pages(site):
        is_there = page == "/" or f'href="{page[1:]}"' in front
        if page.startswith("/decisions/") and page != "/decisions/":
            is_there = f'href="{page.removeprefix("/decisions/")}' in decisions
        assert is_there, f"{page} is not in the navigation"


@thorough
def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for tag in re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text(encoding="utf-8")
        ):
            source = re.search(r'(?:src|href)="(https?:)?//', tag)
            assert source is None or 'rel="canonical"' in tag, f"{page.relative_to(site)}: {tag}"


SEARCHES = {
    "compare-and-set": "how-to/atomic/",
    "counters": "how-to/atomic/",
    "datetime": "how-to/typed/",
    "gunicorn": "how-to/several-workers/",
    "increment": "how-to/atomic/",
    "pytest": "how-to/testing/",
    "transfer": "how-to/atomic/",
}


@thorough
@pytest.mark.parametrize("word", SEARCHES)
def test_a_search_shows_the_page_of_its_word_first(site: Path, word: str) -> None:
    """The search of the site ranks a word in a title above any number of them in the text, and
    among titles those with few words."""
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    titles = {entry["location"]: entry["title"].lower() for entry in index["docs"]}
    named = [place for place, title in titles.items() if word in title]
    pages = {place.partition("#")[0] for place in named if not place.startswith("decisions/")}
    assert SEARCHES[word] in pages
    assert min(named, key=lambda place: len(titles[place].split())).startswith(SEARCHES[word])


@thorough
@pytest.mark.parametrize("width", [pytest.param(SCREEN, marks=thorough), TELEPHONE])
def test_no_element_of_any_page_is_wider_than_its_place(
    site: Path, address: str, browser: str, width: int
) -> None:
    asked = urlencode({"width": width, "pages": ",".join(pages(site))})
    address = f"{address}/fits.html?{asked}"
    with subprocess.Popen(
        command(browser, "--remote-debugging-port=0", address),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        try:
            found = _Site.found.get(timeout=150)
        finally:
            os.killpg(running.pid, signal.SIGKILL)  # the command may be a script that starts it
    assert set(found) == set(pages(site))
    assert not any(found.values()), json.dumps(
        {page: wide for page, wide in found.items() if wide}, indent=1
    )


@thorough
@pytest.mark.parametrize("width", [SCREEN, TELEPHONE])
def test_screenshots_of_pages_are_made(address: str, browser: str, width: int) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for page in LOOKED_AT:
        picture = PICTURES / f"{page.replace('/', '-') or 'start'}-{width}.png"
        asked = command(
            browser,
            f"--screenshot={picture}",
            f"--window-size={width},1400",
            f"{address}/{page}{'/' if page else ''}",
        )
        subprocess.run(asked, capture_output=True, check=True, timeout=150)
        assert picture.stat().st_size > 10_000, f"{picture} is almost empty"
