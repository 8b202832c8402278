"""Runs programs of the docs, each in a process of its own that has imported the library already:
otherwise each of them would import it for half a second.

A line on standard input is the path of a program. It runs in the folder of that path, and what it
writes to standard error is in the file `PATH.errors`. The answer, a line too, is its exit code.
"""

from __future__ import annotations

import os
import sys

import imap_wal  # noqa: F401 - what takes long


def main() -> None:
    for line in sys.stdin:
        path = line.rstrip("\n")
        child = os.fork()
        if not child:
            run(path)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def run(path: str) -> None:
    """As the main module, whose objects exist until the end of the process."""
    os.chdir(os.path.dirname(path))
    os.dup2(os.open(f"{path}.errors", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    main_module = vars(sys.modules["__main__"])
    sys.argv = [path]
    with open(path, encoding="utf-8") as file:
        source = file.read()
    for name in ("annotations", "main", "run"):
        main_module.pop(name, None)
    main_module["__file__"], main_module["__spec__"] = path, None
    exec(compile(source, path, "exec", dont_inherit=True), main_module)


if __name__ == "__main__":
    main()
