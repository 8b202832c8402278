"""Real services for the tests of stores: found or installed, started on a free port, stopped again.
Nothing is skipped: a missing service fails the test that needs it, and the error names the program
to install."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build" / "services"


def need(program: str, why: str) -> str:
    """The path of a program."""
    found = shutil.which(program) or shutil.which(program, path="/usr/local/go/bin")
    if found is None:
        pytest.fail(f"{program} is not installed: {why}", pytrace=False)
    return found


def go_program(name: str, module: str) -> str:
    """A program written in Go, installed into build/services if it is missing (a minute or two)."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:  # two runs of tests at once install it once
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _found_or_installed(name, module)


def _found_or_installed(name: str, module: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(BUILD))
    if found is None:
        go = need("go", f"the storage tests build {name} with `go install {module}`")
        in_gopath = (
            Path(
                subprocess.run(
                    [go, "env", "GOPATH"], check=True, capture_output=True, text=True
                ).stdout.strip()
            )
            / "bin"
            / name
        )
        if in_gopath.exists():
            return str(in_gopath)
        built = subprocess.run(
            [go, "install", module],
            env={**os.environ, "GOBIN": str(BUILD)},
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            pytest.fail(f"go install {module}: {built.stderr[-2000:]}", pytrace=False)
        found = str(BUILD / name)
    return found


def debian_program(name: str, package: str) -> str | None:
    """A program of a package of Debian, unpacked into build/services if it is not installed, which
    needs no root. None: there is no apt-get here."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = shutil.which(name) or shutil.which(name, path=str(BUILD))
        if found is not None or shutil.which("apt-get") is None:
            return found
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            for command in (
                ["apt-get", "download", package],
                ["sh", "-c", "dpkg-deb --fsys-tarfile *.deb | tar -x"],
            ):
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=False
                )
                if done.returncode:
                    pytest.fail(f"{' '.join(command)}: {done.stderr[-2000:]}", pytrace=False)
            os.replace(Path(folder, "usr", "bin", name), BUILD / name)
        return str(BUILD / name)


@contextlib.contextmanager
def running(
    command: list[str],
    port: int,
    log: Path,
    *,
    environment: dict[str, str] | None = None,
    seconds: float = 60,
    ready: Path | None = None,
) -> Iterator[None]:
    """The service `command`, answering on `port`, and with the file `ready` written; its output is
    in `log`."""
    everything = {**os.environ, **(environment or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=everything, cwd=log.parent
        )
    try:
        deadline = time.monotonic() + seconds
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(
                    f"{command[0]} did not start: {log.read_text(errors='replace')[-2000:]}",
                    pytrace=False,
                )
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1),
            ):
                if ready is None or ready.exists():
                    break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
