"""A disk that loses what was not synced. It records the system calls that change a folder, and
computes what may be left of the folder after a crash at any of them.

    with RecordedDisk(root) as disk:
        ... LocalStore(root) ...
    for image in disk.images(...):        # path → content
        ...

After a kill, everything is left. After a power loss, a file has the content of its last sync and,
of the later writes, nothing, a prefix, or any of the 512-byte sectors. A folder has the names of
its last sync and, of the later changes, none, a prefix, or any (a rename is one change). The sync
of a file says nothing about its name: POSIX promises no more, and some file systems do no more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from storage_backends import descriptors
from storage_backends.faults import SECTOR_BYTES
from storage_backends.paths import TEMPORARY_PREFIX

Change = tuple[Any, ...]
Image = dict[str, bytes]

NAMES = ("none", "prefix", "any")
BYTES = ("none", "prefix", "sectors")
CALLS = (
    "open",
    "close",
    "link",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
    "pwrite",
    "pwritev",
    "ftruncate",
    "posix_fallocate",
    "fsync",
    "fdatasync",
)
"""The system calls of `storage_backends` that change a disk."""


@dataclass
class _File:
    volatile: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    dirty: bool = False

    def write(self, offset: int, data: bytes) -> None:
        self.volatile.extend(bytes(max(0, offset - len(self.volatile))))
        self.volatile[offset : offset + len(data)] = data
        self.dirty = True

    def resize(self, size: int) -> None:
        del self.volatile[size:]
        self.volatile.extend(bytes(size - len(self.volatile)))
        self.dirty = True

    def sync(self) -> None:
        if self.dirty:
            self.durable, self.dirty = bytes(self.volatile), False

    def left(self, kept: str, chance: Random) -> bytes:
        new, old = bytes(self.volatile), self.durable
        if not self.dirty or kept == "all":
            return new
        if kept == "none":
            return old
        if kept == "prefix":
            at = chance.randint(
                next(
                    (at for at, (a, b) in enumerate(zip(new, old, strict=False)) if a != b),
                    min(len(new), len(old)),
                ),
                len(new),
            )
            return new[:at] + old[at:]
        size = chance.choice((len(new), len(old)))
        data = bytearray(max(len(new), len(old)))
        for at in range(0, len(data), SECTOR_BYTES):
            part = (new if chance.random() < 0.5 else old)[at : at + SECTOR_BYTES]
            data[at : at + len(part)] = part
        if size > len(new):
            data[len(new) :] = old[len(new) :]  # it was not cut, so it was not emptied either
        return bytes(data[:size])


@dataclass
class _Folder:
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        self.durable = self.left("all", Random(0))
        self.pending = []

    def left(self, kept: str, chance: Random) -> dict[str, int]:
        count = {"none": 0, "prefix": chance.randint(0, len(self.pending))}.get(
            kept, len(self.pending)
        )
        names = dict(self.durable)
        for change in self.pending[:count]:
            if kept == "any" and chance.random() < 0.5:
                continue
            match change:
                case ("add", name, node):
                    names[name] = node
                case ("remove", name):
                    names.pop(name, None)
                case ("rename", name, new, node):
                    names.pop(name, None)
                    names[new] = node
        return names


class Replay:
    """The disk at one moment of what was recorded."""

    def __init__(self) -> None:
        self.files: dict[int, _File] = {}
        self.folders: dict[int, _Folder] = {0: _Folder()}

    def apply(self, call: str, *what: Any) -> None:
        match call, what:
            case "create", (folder, name, node):
                self.files[node] = _File()
                self.folders[folder].pending.append(("add", name, node))
            case "mkdir", (folder, name, node):
                self.folders[node] = _Folder()
                self.folders[folder].pending.append(("add", name, node))
            case "link", (folder, name, node):
                self.folders[folder].pending.append(("add", name, node))
            case "unlink", (folder, name):
                self.folders[folder].pending.append(("remove", name))
            case "rename", (folder, name, new, node):
                self.folders[folder].pending.append(("rename", name, new, node))
            case "write", (node, offset, data):
                self.files[node].write(offset, data)
            case "resize", (node, size):
                self.files[node].resize(size)
            case "sync", (node,):
                (self.files if node in self.files else self.folders)[node].sync()
            case _:
                raise AssertionError(call)

    def left(self, names: str, data: str, chance: Random) -> Image:
        """What is left after a crash now, without temporary files, which are never read."""
        image: Image = {}

        def walk(folder: int, prefix: str) -> None:
            for name, node in self.folders[folder].left(names, chance).items():
                if node in self.folders:
                    walk(node, f"{prefix}{name}/")
                elif not name.startswith(TEMPORARY_PREFIX):
                    image[prefix + name] = self.files[node].left(data, chance)

        walk(0, "")
        return image


class RecordedDisk:
    """See the module. `calls` are the changes in order; `mark` puts a note between them, for a
    replay."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.calls: list[Change] = []
        self._nodes: dict[str, int] = {self.root: 0}
        self._fds: dict[int, int] = {}
        self._folders: dict[int, str] = {}
        self._next = 1
        self._mutex = threading.RLock()
        self._originals: list[tuple[Any, str, Any]] = []

    def mark(self, note: Any) -> None:
        with self._mutex:
            self.calls.append(("mark", note))

    def images(
        self, kinds: tuple[tuple[str, str], ...], chance: Random, every: int = 1
    ) -> Iterator[tuple[int, str, Any, Image]]:
        """(number of the call before which it happens, what is kept, the last mark, what is left)
        of crashes, no two alike. `kinds`: pairs of NAMES and BYTES, ("all", "all") a kill."""
        replay, note = Replay(), None
        seen: set[int] = set()
        number = 0
        for call in (*self.calls, ("end",)):
            if call[0] == "mark":
                note = call[1]
                continue
            number += 1
            for names, data in kinds if number % every == 0 else ():
                image = replay.left(names, data, chance)
                distinct = hash((id(note), frozenset(image.items())))
                if distinct not in seen:
                    seen.add(distinct)
                    yield number, f"names {names}, bytes {data}", note, image
            if call[0] != "end":
                replay.apply(*call)

    # ---- recording ----

    def __enter__(self) -> Self:
        os.makedirs(self.root, exist_ok=True)
        sync_data = descriptors._sync_data is os.fdatasync
        for name in CALLS:
            self._patch(os, name, self._around(getattr(self, f"_on_{name}"), getattr(os, name)))
        if sync_data:
            self._patch(descriptors, "_sync_data", os.fdatasync)
        return self

    def __exit__(self, *_: object) -> None:
        for where, name, original in reversed(self._originals):
            setattr(where, name, original)

    def _patch(self, where: Any, name: str, replacement: Any) -> None:
        self._originals.append((where, name, getattr(where, name)))
        setattr(where, name, replacement)

    def _around(
        self, record: Callable[..., None], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            with self._mutex:
                answer = original(*args, **more)
                folder = more.get("dir_fd")
                if folder is None:
                    record(answer, *args)
                elif folder in self._folders:
                    path = os.path.normpath(f"{self._folders[folder]}/{args[0]}")
                    record(answer, path, *args[1:])
                return answer

        return call

    def _place(self, path: Any) -> tuple[int, str] | None:
        """(folder, name) of a path below the root."""
        if not isinstance(path, str) or not path.startswith(self.root + "/"):
            return None
        folder, _, name = path.rpartition("/")
        return self._nodes[folder], name

    def _new(self, call: str, path: str) -> int:
        place = self._place(path)
        assert place is not None
        node, self._next = self._next, self._next + 1
        self._nodes[path] = node
        self.calls.append((call, *place, node))
        return node

    def _on_open(self, fd: int, path: Any, flags: int, *_: Any) -> None:
        if path == self.root or self._place(path) is not None:
            made = flags & os.O_CREAT and path not in self._nodes
            self._fds[fd] = self._new("create", path) if made else self._nodes[path]
            if flags & os.O_DIRECTORY:
                self._folders[fd] = path

    def _on_close(self, _: None, fd: int) -> None:
        self._fds.pop(fd, None)
        self._folders.pop(fd, None)

    def _on_mkdir(self, _: None, path: Any, *__: Any) -> None:
        if self._place(path):
            self._new("mkdir", path)

    def _on_link(self, _: None, source: Any, target: Any) -> None:
        if place := self._place(target):
            self._nodes[target] = self._nodes[source]
            self.calls.append(("link", *place, self._nodes[source]))

    def _on_replace(self, _: None, source: Any, target: Any) -> None:
        if place := self._place(target):
            folder, name = self._place(source) or (-1, "")
            assert folder == place[0], "between folders nothing is renamed here"
            self._nodes[target] = self._nodes.pop(source)
            self.calls.append(("rename", folder, name, place[1], self._nodes[target]))

    def _on_unlink(self, _: None, path: Any, *__: Any) -> None:
        if place := self._place(path):
            del self._nodes[path]
            self.calls.append(("unlink", *place))

    _on_rmdir = _on_unlink

    def _on_pwrite(self, written: int, fd: int, data: Any, offset: int) -> None:
        if fd in self._fds:
            self.calls.append(("write", self._fds[fd], offset, bytes(data[:written])))

    def _on_pwritev(self, written: int, fd: int, parts: Any, offset: int) -> None:
        self._on_pwrite(written, fd, b"".join(parts), offset)

    def _on_ftruncate(self, _: None, fd: int, size: int) -> None:
        if fd in self._fds:
            self.calls.append(("resize", self._fds[fd], size))

    def _on_posix_fallocate(self, _: None, fd: int, offset: int, length: int) -> None:
        self._on_ftruncate(None, fd, offset + length)

    def _on_fsync(self, _: None, fd: int) -> None:
        if fd in self._fds:
            self.calls.append(("sync", self._fds[fd]))

    _on_fdatasync = _on_fsync
