"""Where a process serves: at a Unix socket with a lock beside it, or at a TCP address (`network`).

    {folder}/{name}         the socket, mode 0600
    {folder}/{name}.lock    held by the process that serves; its line names that process

Their folder belongs to the user, and no other user may enter it. Whoever has the lock may remove a
socket that a process left behind when it was killed.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import tempfile
from contextlib import suppress
from typing import ClassVar, Protocol
from weakref import WeakSet

from imap_wal.checks import location
from imap_wal.errors import ImapWalError, InvalidSetting
from storage_backends.local import LocalStore, folder_of
from storage_backends.location import Place

PATH_BYTES_MAX = 107
"""The kernel's limit for the path of a socket."""
_PEER = struct.Struct("iII")


def default_path(url: Place, namespace: str, cluster: str) -> str:
    """The path of the socket of these maps or this stream, in a folder of this user for temporary
    files."""
    text = location(url).url
    if "://" not in text or text.startswith(("file:", "objects+file:")):
        text = os.path.realpath(os.path.expanduser(folder_of(text)))
    name = hashlib.sha256(f"{text}\0{namespace}\0{cluster}".encode(errors="surrogateescape"))
    folder = f"imap-wal-{os.geteuid()}"
    return os.path.join(tempfile.gettempdir(), folder, f"{name.hexdigest()[:24]}.sock")


class ServerLock(Protocol):
    """The right to listen at an endpoint."""

    def release(self) -> None: ...


class Endpoint(Protocol):
    """Where a process serves others."""

    name: str
    """For errors and messages."""

    def lock(self, holder: str) -> ServerLock:
        """Raises `Locked` while another process serves."""

    def listen(self) -> socket.socket:
        """With the lock held. Raises `InvalidSetting` if that is not possible."""

    def admitted(self, accepted: socket.socket) -> socket.socket | None:
        """The connection to read and write; None: the peer is not admitted. It does not wait."""

    def greet(self, connection: socket.socket) -> None:
        """What comes before the first message of an admitted connection. Raises OSError."""

    def connect(self, timeout_s: float) -> socket.socket:
        """Raises OSError: FileNotFoundError or ConnectionRefusedError if no process serves; and
        `NotAllowed`."""

    def refusal(self, error: OSError) -> ImapWalError | None:
        """What an error of the first messages means, if the server does not admit this process."""

    def advice(self, error: OSError) -> str:
        """What may be the cause of an error, as the end of a sentence; "": not known."""

    def skip(self) -> bool:
        """The server that answered last cannot serve this process: begin with another address the
        next time. Returns whether there is another one."""

    def peer(self, connection: socket.socket) -> str:
        """Who is at the other end, for messages."""

    def remove(self) -> None:
        """With the lock held: nothing listens any more."""


class LocalEndpoint:
    """A Unix socket. Raises `InvalidSetting` if the folder is not safe or the path is too long. The
    folder is created if it does not exist."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = self.path = os.path.abspath(os.fspath(path))
        size = len(os.fsencode(self.path))
        if size > PATH_BYTES_MAX:
            raise InvalidSetting(
                f"socket {self.path}: the path has {size} bytes, and a socket takes at most "
                f"{PATH_BYTES_MAX}; choose a shorter one"
            )
        self._folder, self._name = os.path.split(self.path)
        with suppress(FileExistsError):
            os.makedirs(self._folder, mode=0o700)
        status = os.stat(self._folder)
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            raise InvalidSetting(
                f"socket {self.path}: other users can write to its folder, so they could replace "
                "the socket; choose a folder that only this user can write to"
            )

    def lock(self, holder: str) -> ServerLock:
        return LocalStore(self._folder).lock(f"{self._name}.lock", holder)

    def listen(self) -> socket.socket:
        """Raises `InvalidSetting` if there is something other than a socket."""
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise InvalidSetting(
                    f"there is something other than a socket at {self.path}; it was not changed: "
                    "choose another path"
                )
            os.unlink(self.path)
        listening = Sockets.kept(socket.socket(socket.AF_UNIX))
        # The umask applies to the whole process. Files that other threads create have such modes
        # anyway; with 0o177, this process could not enter a folder that one of them creates.
        before = os.umask(0o077)
        try:
            listening.bind(self.path)
        finally:
            os.umask(before)
        os.chmod(self.path, 0o600)
        listening.listen(128)
        return listening

    def admitted(self, accepted: socket.socket) -> socket.socket | None:
        """A process of this user, or of root."""
        data = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return accepted if _PEER.unpack(data)[1] in (os.geteuid(), 0) else None

    def greet(self, connection: socket.socket) -> None: ...

    def connect(self, timeout_s: float) -> socket.socket:
        connection = Sockets.kept(socket.socket(socket.AF_UNIX))
        try:
            connection.settimeout(timeout_s)
            connection.connect(self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def refusal(self, error: OSError) -> ImapWalError | None:
        return None

    def advice(self, error: OSError) -> str:
        return ""

    def skip(self) -> bool:
        return False

    def peer(self, connection: socket.socket) -> str:
        return "a process of this machine"

    def remove(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)


class Sockets:
    """A forked child closes the sockets of its parent: otherwise no one would notice that the
    parent has died."""

    _open: ClassVar[WeakSet[socket.socket]] = WeakSet()

    @staticmethod
    def kept(opened: socket.socket) -> socket.socket:
        Sockets._open.add(opened)
        return opened

    @staticmethod
    def _after_fork_in_child() -> None:
        for sockets in list(Sockets._open):
            sockets.close()


os.register_at_fork(after_in_child=Sockets._after_fork_in_child)
