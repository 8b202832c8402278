"""The workers of gunicorn share one store, and any of them may be killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from http.client import HTTPException
from pathlib import Path

import pytest

import imap_wal
from tests.kit.effort import thorough
from tests.kit.pages import titled
from tests.support import eventually

PAGE = Path(__file__).parents[2] / "docs/how-to/several-workers.md"
APP = """
import os

store = None  # the configuration of the page sets it


def app(environ, start_response):
    job = environ["PATH_INFO"][1:]
    if job:
        store.map("hits").add("all")
        store.map("jobs")[job] = os.getpid()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


@thorough
def test_four_workers_of_gunicorn_lose_and_double_nothing(tmp_path: Path) -> None:
    """A request that got an answer is in the log once; one whose worker was killed at most once.
    The configuration is that of the page."""
    pytest.importorskip("gunicorn")
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    configuration = titled(PAGE)["gunicorn.conf.py"]
    configuration = configuration.replace("/var/lib/app/log", f"{tmp_path}/maps")
    (tmp_path / "gunicorn.conf.py").write_text(configuration, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    words = ["-m", "gunicorn", "-w", "4", "--threads", "2", "-b", f"127.0.0.1:{port}", "app:app"]
    place = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=place) as gunicorn:
        eventually(lambda: ask(url) is not None, "it answers", 60)
        answered: list[str] = []
        unanswered: list[str] = []

        def browse(name: str) -> None:
            for number in range(150):
                job = f"{name}-{number}"
                (unanswered if ask(url + job) is None else answered).append(job)

        browsers = [threading.Thread(target=browse, args=(f"b{each}",)) for each in range(8)]
        for browser in browsers:
            browser.start()
        rng = random.Random(1)
        for kill in range(8):
            eventually(
                lambda kill=kill: len(answered) > 100 * (kill + 1),
                "the workers go on",
                60,
            )
            os.kill(rng.choice(children(gunicorn.pid)), signal.SIGKILL)
        for browser in browsers:
            browser.join()
        gunicorn.terminate()
        gunicorn.wait(60)
    with imap_wal.open(tmp_path / "maps") as store:
        jobs, hits = store.map("jobs"), store.map("hits")["all"]
        assert set(answered) <= set(jobs) <= {*answered, *unanswered}
        assert len(answered) <= hits <= len(answered) + len(unanswered)
        assert len(unanswered) < 100


def ask(url: str) -> int | None:
    """The process that answered; None: the connection was lost."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.read())
    except (OSError, HTTPException):  # the worker was killed before or during its answer
        return None


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(each) for each in found]
