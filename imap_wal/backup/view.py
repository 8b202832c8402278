"""The files of one moment as a storage that can only be read."""

from __future__ import annotations

import builtins
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Never

from storage_backends import (
    Appender,
    Capabilities,
    Held,
    Linked,
    Lock,
    NotFound,
    StoredFile,
    Unsupported,
)


@dataclass(frozen=True, slots=True)
class CapturedFile:
    """A file of a view; its content, if it is in memory."""

    size: int
    content: bytes | None = None


class FileView:
    """A `SegmentStore` of given files. Reads raise `NotFound` for a file that is not given, or
    whose content is not; all methods that write, and `lock`, raise `Unsupported`.

    Args:
        files: Path → file.
        capabilities: Those of the storage from which the files are: they decide how a log is read.
    """

    url = "backup:"

    def __init__(self, files: Mapping[str, CapturedFile], capabilities: Capabilities) -> None:
        self._files = files
        self.capabilities = replace(capabilities, locks=False, stale_listings=False)

    def list(self, folder: str) -> builtins.list[StoredFile]:
        prefix = f"{folder}/" if folder else ""
        return [
            StoredFile(path, self._files[path].size)
            for path in sorted(self._files)
            if path.startswith(prefix)
        ]

    def folders(self, folder: str) -> builtins.list[str]:
        prefix = f"{folder}/" if folder else ""
        inside = [path[len(prefix) :] for path in self._files if path.startswith(prefix)]
        return sorted({path.partition("/")[0] for path in inside if "/" in path})

    def exists(self, path: str) -> bool:
        return path in self._files

    def hold(self, path: str) -> Held:
        self._refuse(path)

    def size(self, path: str) -> int:
        return self._of(path).size

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        content = self._of(path).content
        if content is None:
            raise NotFound("the content of this file was not captured", path)
        return content[offset : None if length is None else offset + length]

    def open_input(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def _of(self, path: str) -> CapturedFile:
        if path not in self._files:
            raise NotFound("there is no such file in the backup", path)
        return self._files[path]

    def _refuse(self, path: str) -> Never:
        raise Unsupported("a backup cannot be changed", path)

    def create(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def create_from(self, path: str, local_file: str) -> None:
        self._refuse(path)

    def replace(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        self._refuse(path)

    def truncate(self, path: str, size: int) -> None:
        self._refuse(path)

    def delete(self, path: str) -> None:
        self._refuse(path)

    def discard(self, path: str) -> None:
        self._refuse(path)

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        self._refuse(", ".join(paths))

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        self._refuse(path)

    def close(self) -> None:
        pass
