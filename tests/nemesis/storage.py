"""Where the logs of a world are: in one root for all agents; or each agent's segments on a disk of
its own, which no other agent can read, and the rest in the root, which each agent reaches through a
path of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.disks import mounted

ROOT_MB, DISK_MB = 192, 48
UPLOAD_S = 2.0
"""A segment is sealed and uploaded at this age: short, so that a fault finds some that are in the
root, some that are not, and some on their way."""
TAIL_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Storage:
    """What a run chooses. `copies`: how many logs have each change."""

    own_disks: bool = False
    copies: int = 1

    def __str__(self) -> str:
        disks = "own" if self.own_disks else "shared"
        return f"{disks} disks, {self.copies} {'copies' if self.copies > 1 else 'copy'}"

    def properties(self, endpoints: list[str]) -> dict[str, str]:
        """The properties of the plug-in. `endpoints`: those of all agents."""
        if self.copies == 1:
            return {}
        return {"copies": str(self.copies), "copy-agents": ",".join(endpoints)}


SHARED = Storage()


def add_options(parser: ArgumentParser) -> None:
    """For `chosen_storage`."""
    parser.add_argument(
        "--disks",
        choices=["shared", "own"],
        default="shared",
        help="where the segments of each agent are",
    )
    parser.add_argument(
        "--copies", type=int, choices=[1, 2, 3], default=1, help="how many logs have each change"
    )


def chosen_storage(options: Namespace) -> Storage:
    return Storage(options.disks == "own", options.copies)


class Root:
    """The folder that all agents share, a small disk if one can be mounted."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.is_disk = mounted(folder, ROOT_MB)

    def close(self) -> None:
        if self.is_disk:
            _unmount(self.path)


class OwnDisk:
    """The disk of one node, and the path of its agent to the root. `disk`: where the agent's
    segments are. The disk may only be changed while its agent does not run. `way`: a link to the
    root, which `cut` breaks."""

    def __init__(self, folder: Path, node: str, root: Path) -> None:
        self.disk, self._node, self._root = folder / f"disk-{node}", node, root
        self.is_disk = mounted(self.disk, DISK_MB)
        self._kept, self._count = folder / "kept", 0
        self.way = folder / f"root-{node}"
        self.way.symlink_to(root)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the agent."""
        return {"upload_interval_s": UPLOAD_S, "tail_timeout_s": TAIL_TIMEOUT_S}

    def copied(self) -> Path:
        """A copy of the disk as it is now, as a snapshot of a running machine has it."""
        self._count += 1
        kept = self._kept / f"{self._node}-{self._count}"
        kept.mkdir(parents=True)
        for parent, folders, names in os.walk(self.disk):
            to = kept / Path(parent).relative_to(self.disk)
            for name in folders:
                (to / name).mkdir(exist_ok=True)
            for name in names:
                with suppress(FileNotFoundError):  # archived, and deleted meanwhile
                    shutil.copyfile(Path(parent, name), to / name)
        return kept

    def empty(self) -> None:
        for each in self.disk.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()

    def put(self, kept: Path) -> None:
        """Replace what is on the disk by a copy of it."""
        self.empty()
        shutil.copytree(kept, self.disk, dirs_exist_ok=True)

    @contextmanager
    def cut(self) -> Iterator[None]:
        """The agent cannot reach the root: each call fails."""
        loop = self.way.with_suffix(".cut")
        loop.unlink(missing_ok=True)
        loop.symlink_to(self.way)
        os.replace(loop, self.way)
        try:
            yield
        finally:
            loop.symlink_to(self._root)
            os.replace(loop, self.way)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Nothing can be written to the disk. If no tmpfs could be mounted, nothing changes."""
        filler = self.disk / "filler"
        if self.is_disk:
            fill(filler)
        try:
            yield
        finally:
            filler.unlink(missing_ok=True)

    def close(self) -> None:
        if self.is_disk:
            _unmount(self.disk)


def fill(filler: Path) -> None:
    """Write to this file until its disk is full."""
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)
