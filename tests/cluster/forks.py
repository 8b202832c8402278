"""Agents as forks of one process that has imported their modules already: imports are most of the
work of an agent's start. Run as a program, this is that process. It ends with the process that
started it, and its forks end with it.

It reads one JSON object a line: a process to begin, or one whose end is asked for."""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMMAND = "rewrite_cli.cli"
ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1


class Forked:
    """A process that was forked; used as `subprocess.Popen` is. It stays a zombie until its exit
    code is read, so signals never reach another process."""

    stdin = stdout = None

    def __init__(self, server: Server, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server, self._lock = server, threading.Lock()
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and self._ended(0):
                self.returncode = self._server.ask(reap=self.pid)
                os.close(self._end)
            return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None and not self._ended(timeout):
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout)
        code = self.poll()
        assert code is not None
        return code

    def _ended(self, seconds: float) -> bool:
        waiting = select.poll()
        waiting.register(self._end, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    def send_signal(self, number: signal.Signals) -> None:
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that forks, seen from the tests. It starts at the first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def fork(self, module: str, arguments: Sequence[str], log: Path) -> Forked:
        """`python -m module` with this process's environment. It has no input; its output is
        written to the log."""
        pid = self.ask(module=module, arguments=[*arguments], log=str(log), environ={**os.environ})
        return Forked(self, pid)

    def ask(self, **question: Any) -> int:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.cluster.forks"],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                    start_new_session=True,
                )
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


SERVER = Server()


# ---- in the process that forks ----


def _preload() -> None:
    # As the command does before pyarrow is imported.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    import imap_wal.agent.config
    import imap_wal.agent.monitoring.traces
    import imap_wal.agent.process
    import imap_wal.security.encryption_keys  # noqa: F401
    import rewrite_cli.__main__
    import rewrite_cli.cli
    import rewrite_cli.commands.service.agent  # noqa: F401

    # Those of jemalloc and OpenBLAS start again in a fork.
    assert threading.active_count() == 1, "a thread would be missing in forks"


def _serve() -> None:
    _preload()
    gc.collect()
    gc.freeze()
    libc, ours = ctypes.CDLL(None), os.getpid()
    while line := sys.stdin.readline():
        question = json.loads(line)
        if "reap" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["reap"], 0)[1])
        elif not (answer := os.fork()):
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == ours:
                _run(**question)
        print(answer, flush=True)


def _run(module: str, arguments: Sequence[str], log: str, environ: dict[str, str]) -> None:
    """In the fork, in place of the interpreter's own start and end."""
    code = 1
    try:
        with open(os.devnull) as nothing, open(log, "ab") as output:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = [module, *arguments]
        if module == COMMAND:
            sys.modules["rewrite_cli.__main__"].main()
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
