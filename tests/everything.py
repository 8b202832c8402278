"""`make test-all`: everything, in parts. What has passed on this tree is not run again.

One part follows the other: long tests would reach their time limits if two ran at once. A run that
was stopped, or failed, goes on with what has not passed yet, as long as no file has changed. The
record, with the minutes of each part, is in `build/tested/`, by the id of the tree in git.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.kit.passed import all_of

ROOT = Path(__file__).parents[1]
NO_TESTS = 5
"""The exit code of pytest when it has run no test: all have passed before."""


def tree() -> str:
    """The id that git gives to all files as they are now, committed or not; ignored ones apart."""
    index = ROOT / "build" / "tested" / "index"
    index.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GIT_INDEX_FILE": str(index)}
    for command in (["git", "read-tree", "HEAD"], ["git", "add", "--all"]):
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    written = subprocess.run(
        ["git", "write-tree"], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return written.stdout.strip()


def parts(record: Path, workers: int) -> dict[str, list[str]]:
    """The command of each part."""
    python = str(ROOT / ".venv" / "bin" / "python")
    pytest = [python, "-m", "pytest", f"--passed={record / 'tests'}"]
    spread = ["--numprocesses", str(workers), "--dist", "loadscope"]
    return {
        "lint": ["make", "--no-print-directory", "lint"],
        "java": ["mvn", "-q", "-B", "-f", "hazelcast_plugin", "verify"],
        "python": [*pytest, *spread, "-m", "not alone", "--hypothesis-profile", "all"],
        "alone": [*pytest, "-m", "alone", "--hypothesis-profile", "all"],
        "maps of hazelcast": [python, "-m", "tests.hazelcast_maps"],
    }


def main(workers: int) -> int:
    """Run what has not passed on this tree yet. Returns: how many parts failed."""
    record = ROOT / "build" / "tested" / tree()
    record.mkdir(exist_ok=True)
    minutes_file = record / "minutes.json"
    minutes: dict[str, float] = {}
    if minutes_file.exists():
        minutes = json.loads(minutes_file.read_text())
    failed = []
    for name, command in parts(record, workers).items():
        done = record / name.replace(" ", "-")
        if done.exists():
            print(f"{name}: has passed on this tree", flush=True)
            continue
        print(f"{name}: {' '.join(command)}", flush=True)
        start = time.monotonic()
        try:
            code = subprocess.run(command, cwd=ROOT).returncode
        finally:
            minutes[name] = minutes.get(name, 0.0) + (time.monotonic() - start) / 60
            minutes_file.write_text(json.dumps(minutes))
        if code == 0 or (code == NO_TESTS and name in ("python", "alone")):
            done.touch()
        else:
            failed.append(name)
    print(f"tests of Python that have passed: {len(set(all_of(record / 'tests')))}")
    for name, spent in minutes.items():
        print(f"{spent:6.1f} minutes  {name}{': FAILED' if name in failed else ''}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
