"""A copy of the sources in which defects are tried one after another, with as many examples as in
`make test`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.mutation import ROOT, SOURCES, Mutation

JAVA_SOURCES = (
    "hazelcast_plugin/pom.xml",
    "hazelcast_plugin/wire/pom.xml",
    "hazelcast_plugin/wire/src",
    "hazelcast_plugin/plugin/pom.xml",
    "hazelcast_plugin/plugin/src",
    "hazelcast_plugin/seatunnel/pom.xml",
    "hazelcast_plugin/seatunnel/src",
    "LICENSE",
    "NOTICE",
    "tests/golden",
)


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    folder: Path

    @classmethod
    def of(cls, names: Sequence[str], folder: Path) -> WorkingCopy:
        """Copy these files and folders of the project. `folder` is empty."""
        for name in names:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        return cls(folder)

    def survives(self, mutation: Mutation) -> str:
        """ "" when its test caught it, else what happened."""
        text = (self.folder / mutation.file).read_text()
        if text.count(mutation.old) != 1:
            return f"its text is {text.count(mutation.old)} times in {mutation.file}"
        with self._changed(mutation):
            run = (
                self._java(mutation) if mutation.file.endswith(".java") else self._python(mutation)
            )
        caught = run.returncode == 1 and (
            "1 failed" in run.stdout or "There are test failures" in run.stdout
        )
        return (
            ""
            if caught
            else f"the test ended with {run.returncode}:\n{run.stdout[-1500:]}{run.stderr[-500:]}"
        )

    @contextmanager
    def _changed(self, mutation: Mutation) -> Iterator[None]:
        """With the defect. Afterwards the file has its former time again, as compilers demand."""
        path = self.folder / mutation.file
        text, before = path.read_text(), path.stat()
        path.write_text(text.replace(mutation.old, mutation.new))
        try:
            yield
        finally:
            path.write_text(text)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _python(self, mutation: Mutation) -> subprocess.CompletedProcess[str]:
        command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "500"]
        command += ["--hypothesis-profile", "ci"]
        return self._run([sys.executable, *command, mutation.test], self.folder)

    def _java(self, mutation: Mutation) -> subprocess.CompletedProcess[str]:
        command = ["mvn", "-o", "-q", "-B", "test", f"-Dtest={mutation.test}"]
        return self._run(command, self.folder / "hazelcast_plugin")

    def _run(self, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
        )


def of_python(folder: Path) -> WorkingCopy:
    return WorkingCopy.of(SOURCES, folder)


def of_java(folder: Path) -> WorkingCopy:
    return WorkingCopy.of(JAVA_SOURCES, folder)
