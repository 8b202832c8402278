"""Files of keys: who an agent is, whom it admits, and the token of a cluster.

    {name}.key     name, public key and secret key: 0600, for its owner only
    {name}.pub     name and public key: for those who are to admit it
    clients.toml   whom an agent admits: a table for each name, with its public key and rights
    *.token        the secret that claims of one cluster need: 0600

All are TOML; the plug-in reads the first and the last one line by line. Keys are 32 bytes, written
as hexadecimal digits. See docs/decisions/0030.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from imap_wal.agent.access.peers import Peer, Right
from imap_wal.clock import Clock
from imap_wal.errors import InvalidSetting
from imap_wal.security.secret_files import read_secret_file, read_trusted_file
from imap_wal.watched import Watched
from storage_backends import StorageError
from storage_backends.local import LocalStore

KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
TOKEN = re.compile(r"[\x21-\x7e]{32,200}")
_TAKES = "a token has 32 to 200 visible ASCII characters; make one with `imap-wal keys token FILE`"
LOOK_S = 1.0
"""How long a revoked key may still count."""

_log = structlog.get_logger("imap_wal.agent")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One side's key, as hexadecimal digits. `secret` is "" in a public file."""

    name: str
    public: str
    secret: str = field(default="", repr=False)

    def text(self) -> str:
        """The file of this key."""
        lines = [f'name = "{self.name}"', f'public-key = "{self.public}"']
        if self.secret:
            lines = [
                "# Secret: for its owner only, mode 0600. The file .pub is for the other side.",
                *lines,
                f'secret-key = "{self.secret}"',
            ]
        return "\n".join([*lines, ""])


def key_bytes(text: Any, what: str) -> bytes:
    """`InvalidSetting` unless this is a key. The error does not show it: it may be a secret."""
    if isinstance(text, str) and re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text)
    raise InvalidSetting(
        f"{what} is not a key: a key has {2 * KEY_BYTES} hexadecimal digits; `imap-wal keys "
        "show FILE` prints a public one"
    )


def read_secret(path: str | Path) -> KeyPair:
    """A file with a secret key. `InvalidSetting` if another user may read or replace it."""
    data = _toml(_text(path, read_secret_file), path)
    pair = _pair(data, path)
    key_bytes(data.get("secret-key"), f"{path}: secret-key")
    return KeyPair(pair.name, pair.public, str(data["secret-key"]))


def read_public(path: str | Path) -> KeyPair:
    """The public part of a file of a key."""
    return _pair(_toml(_text(path, lambda file: Path(file).read_bytes()), path), path)


def _pair(data: Mapping[str, Any], path: str | Path) -> KeyPair:
    name = checked_name(data.get("name"), str(path))
    return KeyPair(name, key_bytes(data.get("public-key"), f"{path}: public-key").hex())


def checked_name(name: Any, where: str) -> str:
    """`InvalidSetting` unless this can name a key."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidSetting(
            f"{where}: {name!r} is no name of a key: it takes 1 to 64 letters, digits, dots, "
            "hyphens and underscores"
        )
    return name


def read_token(path: str | Path) -> str:
    """The token in a file. `InvalidSetting` if another user may read or replace it."""
    token = _text(path, read_secret_file).strip()
    if not TOKEN.fullmatch(token):
        raise InvalidSetting(f"{path}: {_TAKES}")
    return token


def token_hash(token: str) -> str:
    """What a manifest keeps of a token. It is long and random, so a slow hash would add nothing."""
    return hashlib.sha256(token.encode()).hexdigest()


def write_new(path: Path, text: str, mode: int) -> None:
    """A file that does not exist yet, with these permissions from its first moment on."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except FileExistsError:
        raise InvalidSetting(
            f"{path} exists already; it stays. Choose another name, or remove it first"
        ) from None
    except OSError as error:
        raise InvalidSetting(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask
        file.write(text)


# ---- whom an agent admits ------------------------------------------------------------------------


def read_clients(path: str | Path) -> dict[str, Peer]:
    """Peers by their public keys. `InvalidSetting` for a file that others may change."""
    found: dict[str, Peer] = {}
    for name, entry in _toml(_text(path, read_trusted_file), path).items():
        where = f"{path}: [{checked_name(name, str(path))}]"
        if not isinstance(entry, Mapping) or set(entry) != {"public-key", "rights"}:
            raise InvalidSetting(
                f'{where} takes public-key = "…" and rights = ["read", "write", "claim"]'
            )
        public = key_bytes(entry["public-key"], f"{where} public-key").hex()
        if public in found:
            raise InvalidSetting(
                f"{where} has the key of {found[public].name}; each client has its own"
            )
        found[public] = Peer(name, rights_of(entry["rights"], where))
    return found


def rights_of(words: Any, where: str) -> frozenset[Right]:
    """`InvalidSetting` names what is no right."""
    known = [str(right) for right in Right]
    if not isinstance(words, list | tuple) or not words or any(word not in known for word in words):
        raise InvalidSetting(
            f"{where}: rights are {words!r}; they take one or more of {', '.join(known)}"
        )
    return frozenset(Right(word) for word in words)


@contextmanager
def changing_clients(path: Path) -> Iterator[dict[str, Peer]]:
    """The clients of a file by their public keys, {} without one, to be changed in place. Without
    an error they are written at the end. Another process that changes the file waits meanwhile, at
    the lock of a file beside it. `InvalidSetting` for files that cannot be used."""
    try:
        lock = os.open(
            path.with_name(f".{path.name}.lock"),
            os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
        )
    except OSError as error:
        raise InvalidSetting(
            f"{error.filename}: {error.strerror}; whoever changes {path} must be able to "
            "lock this file"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clients = read_clients(path) if os.path.lexists(path) else {}
        yield clients
        write_clients(path, clients)
    finally:
        os.close(lock)


def write_clients(path: Path, clients: Mapping[str, Peer]) -> None:
    """Replace the file as a whole: an agent may read it at any moment. Durable when it returns, so
    that a revoked key stays revoked. `InvalidSetting` if the file cannot be written."""
    text = (
        "# Whom the agent admits; `imap-wal keys allow` and `revoke` write it. Agents read it "
        "again when it changes.\n"
    )
    for public, peer in sorted(clients.items(), key=lambda client: client[1].name):
        rights = ", ".join(f'"{right}"' for right in Right if right in peer.rights)
        text += f'\n["{peer.name}"]\npublic-key = "{public}"\nrights = [{rights}]\n'
    try:
        LocalStore(str(path.absolute().parent), file_mode=0o644).replace(path.name, text.encode())
    except StorageError as error:
        raise InvalidSetting(str(error)) from error


class Clients:
    """The clients of a file, which is read again when it has changed. A file that cannot be used
    changes nothing, and is logged. Used by several threads."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._clock = clock
        self._file = Watched(
            path,
            lambda: read_clients(path),
            lambda error: _log.error(
                "clients not read again: those of before still count", file=path, error=str(error)
            ),
        )
        self._path = path
        self._looked = clock.monotonic()

    def known(self) -> Mapping[str, Peer]:
        """The clients by their public keys: the same object until the file has changed."""
        now = self._clock.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            before = self._file.last
            if self._file.look() is not before:
                _log.info(
                    "clients read again", file=self._path, clients=_names(self._file.last.values())
                )
        return self._file.last


def _names(peers: Iterable[Peer]) -> str:
    return ", ".join(
        sorted(
            f"{peer.name} ({'+'.join(right for right in Right if right in peer.rights)})"
            for peer in peers
        )
    )


# ---- reading -------------------------------------------------------------------------------------


def _text(path: str | Path, read: Callable[[str | Path], bytes]) -> str:
    try:
        return read(path).decode()
    except OSError as error:
        raise InvalidSetting(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSetting(
            f"{path}: not UTF-8 at byte {error.start}"
        ) from None  # the error holds the text


def _toml(text: str, path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits
        raise InvalidSetting(f"{path}: not TOML: {error}") from None
