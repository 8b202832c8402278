"""Makes sure that only one agent listens at an `ipc://` endpoint: the socket, and the lock beside
it.

    {path}        the socket, mode 0600 unless `endpoint_mode` says otherwise
    {path}.lock   held by the agent that listens; its one line names that agent; mode 0600

If the agent creates their folder, all users that may connect can enter it, but only the agent's
user can write there, because a user with write permission could replace the socket.

A socket is bound in the place of the former one, which a killed process leaves, and which may be
that of a running process. So an agent binds only after it has the lock and has checked the path.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

import structlog

from imap_wal.errors import InvalidSetting, WriterLocked
from storage_backends import Lock, Locked, StorageError
from storage_backends.local import LocalStore
from storage_backends.ownership import user_name

IPC = "ipc://"
CONNECT_S = 1.0
"""How long to wait for a process that may listen at a socket without the lock. The kernel answers a
local connect at once, unless the socket's queue is full."""

BACKLOG = 1024
"""How many connections wait to be accepted."""

_log = structlog.get_logger("imap_wal.agent")


class EndpointLock:
    """The right to listen at an endpoint, until `release` or the end of this process. `tcp://`
    needs no lock, because the kernel refuses a second listener.

    `owner` names the node of this agent; `holder` also names its process, for the error of another
    agent. `takeover` takes the lock of a running agent of the same `owner`; that agent keeps its
    connections and gets no new ones. Raises `WriterLocked` if an agent of the same `owner`, which
    writes the log of `node`, listens there; and `InvalidSetting` if another agent or process does,
    if the path is not a socket, or if the folder cannot be used."""

    def __init__(
        self,
        endpoint: str,
        owner: str,
        holder: str,
        *,
        node: str = "",
        takeover: bool = False,
        mode: int = 0o600,
    ) -> None:
        self.endpoint, self._node, self._mode = endpoint, node, mode
        self._lock: Lock | None = None
        if not endpoint.startswith(IPC):
            return
        path = endpoint.removeprefix(IPC)
        if not path or path[0] in "@*":
            raise InvalidSetting(
                f"endpoint {endpoint}: every user of this machine may connect there; it "
                "takes the path of a file, ipc:///path"
            )
        self._path = os.path.abspath(path)
        try:
            taken = self._acquire(owner, holder, takeover)
            self._check_place(taken)
        except StorageError as error:
            self.release()
            raise InvalidSetting(f"endpoint {endpoint}: {self._why_no_lock(error)}") from error
        except BaseException:
            self.release()
            raise

    def _acquire(self, owner: str, holder: str, takeover: bool) -> bool:
        """Get the lock. Returns whether it was taken from a running agent."""
        folder, name = os.path.split(self._path)
        locks = LocalStore(
            folder,
            folder_mode=0o700
            | (0o050 if self._mode & 0o070 else 0)
            | (0o005 if self._mode & 0o007 else 0),
        )
        try:
            self._lock = locks.lock(f"{name}.lock", holder)
        except Locked as error:
            is_same = error.holder.startswith(f"{owner} ")
            if is_same and not takeover:
                raise WriterLocked(
                    self._node, f"{error.holder}, which listens at {self.endpoint}"
                ) from error
            if not is_same:
                raise InvalidSetting(
                    f"endpoint {self.endpoint} is held by "
                    f"{error.holder or 'another process'}; stop it, or give this agent "
                    "another endpoint"
                ) from error
            self._lock = locks.lock(f"{name}.lock", holder, take=True)
            _log.warning("endpoint taken over", endpoint=self.endpoint, former=error.holder)
            return True
        return False

    def _why_no_lock(self, error: StorageError) -> str:
        if isinstance(error.__cause__, PermissionError):
            with suppress(OSError):
                owner = os.lstat(f"{self._path}.lock").st_uid
                return (
                    f"the lock file {self._path}.lock belongs to {user_name(owner)}, and "
                    f"{user_name(os.geteuid())} cannot open it; "
                    "if no agent of that user listens there, remove the file, otherwise choose "
                    "another path"
                )
        return f"{error}; name a folder that this user can write to"

    def _check_place(self, taken: bool) -> None:
        try:
            status = os.lstat(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise InvalidSetting(f"endpoint {self.endpoint}: {error.strerror}") from error
        if not stat.S_ISSOCK(status.st_mode):
            raise InvalidSetting(
                f"endpoint {self.endpoint}: there is something other than a socket at "
                f"{self._path}; it was not changed: choose another path"
            )
        if taken:
            return
        try:
            answers = _answers(self._path)
        except PermissionError:
            raise InvalidSetting(
                f"endpoint {self.endpoint}: the socket {self._path} belongs to "
                f"{user_name(status.st_uid)}, and {user_name(os.geteuid())} cannot "
                "connect to it to see whether a process still listens there; if none does, "
                "remove the socket, otherwise choose another path"
            ) from None
        if answers:
            raise InvalidSetting(
                f"endpoint {self.endpoint}: a process without an agent's lock listens at "
                f"{self._path}; stop it, or give this agent another endpoint"
            )

    def listen(self) -> socket.socket:
        """A non-blocking socket that listens at the path. Raises OSError."""
        listening = socket.socket(socket.AF_UNIX)
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._path)  # a socket, as `_check_place` has found
            # No other user can connect before the socket's mode is set. The umask applies to the
            # whole process. Files that other threads create have such modes anyway.
            before = os.umask(0o077)
            try:
                listening.bind(self._path)
            finally:
                os.umask(before)
            os.chmod(self._path, self._mode)  # a user needs write permission to connect
            listening.listen(BACKLOG)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
        return listening

    def release(self) -> None:
        """Release the lock. The files are kept: another agent may already use these paths."""
        if self._lock is not None:
            self._lock.release()


def _answers(path: str) -> bool:
    """Whether a process may listen at a socket; True also if it does not answer. Raises
    PermissionError if this user may not connect."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(CONNECT_S)
        try:
            asking.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except PermissionError:
            raise
        except OSError:
            return True
    return True
