"""Files of keys: an agent's own key, the clients that it admits, and the token of a cluster.

    {name}.key     name, public key and secret key: mode 0600, for its owner only
    {name}.pub     name and public key: for the other side
    clients.toml   the clients of an agent: a table for each name, with public key and rights
    *.token        the secret that a claim for one cluster needs: mode 0600

The first three are TOML; the plug-in reads the first one line by line. Keys are 32 bytes, written
as hexadecimal digits. See decision 30 in docs/decisions/agents.md.
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
from imap_wal.worker import Watched
from storage_backends import StorageError
from storage_backends.local import LocalStore

KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
TOKEN = re.compile(r"[\x21-\x7e]{32,200}")
_TAKES = "a token has 32 to 200 visible ASCII characters; make one with `imap-wal keys token FILE`"
LOOK_S = 1.0
"""How long a revoked key may still be accepted, in seconds."""

_log = structlog.get_logger("imap_wal.agent")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The key of one side, as hexadecimal digits. `secret`: "" in a public file."""

    name: str
    public: str
    secret: str = field(default="", repr=False)

    def text(self) -> str:
        """What the file of this key contains."""
        lines = [f'name = "{self.name}"', f'public-key = "{self.public}"']
        if self.secret:
            lines = [
                "# Secret: for its owner only, mode 0600. The file .pub is for the other side.",
                *lines,
                f'secret-key = "{self.secret}"',
            ]
        return "\n".join([*lines, ""])


def key_bytes(text: Any, where: str) -> bytes:
    """The bytes of a key. Raises `InvalidSetting` if this is not a key; the error does not show it,
    because it may be a secret."""
    if isinstance(text, str) and re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text)
    raise InvalidSetting(
        f"{where} is not a key: a key has {2 * KEY_BYTES} hexadecimal digits; `imap-wal keys "
        "show FILE` prints a public one"
    )


def read_secret(path: str | Path) -> KeyPair:
    """Read a file with a secret key. Raises `InvalidSetting` if it is not one, or if another user
    may read or replace the file."""
    data = _toml(_text(path, read_secret_file), path)
    pair = _pair(data, path)
    if "secret-key" not in data:
        raise InvalidSetting(f"{path} has only a public key; the file {pair.name}.key is needed")
    key_bytes(data.get("secret-key"), f"{path}: secret-key")
    return KeyPair(pair.name, pair.public, str(data["secret-key"]))


def read_public(path: str | Path) -> KeyPair:
    """Read the public part of a key file. Raises `InvalidSetting`."""
    return _pair(_toml(_text(path, lambda file: Path(file).read_bytes()), path), path)


def _pair(data: Mapping[str, Any], path: str | Path) -> KeyPair:
    name = checked_name(data.get("name"), str(path))
    return KeyPair(name, key_bytes(data.get("public-key"), f"{path}: public-key").hex())


def checked_name(name: Any, where: str) -> str:
    """The name of a key. Raises `InvalidSetting` if it is not valid."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidSetting(
            f"{where}: {name!r} is not a valid name of a key: it takes 1 to 64 letters, digits, "
            "dots, hyphens and underscores"
        )
    return name


def read_token(path: str | Path) -> str:
    """Read the token in a file. Raises `InvalidSetting` if there is none, or if another user may
    read or replace the file."""
    token = _text(path, read_secret_file).strip()
    if not TOKEN.fullmatch(token):
        raise InvalidSetting(f"{path}: {_TAKES}")
    return token


def token_hash(token: str) -> str:
    """The hash of a token, for the manifest. A token is long and random, so a fast hash is safe."""
    return hashlib.sha256(token.encode()).hexdigest()


def write_new(path: Path, text: str, mode: int) -> None:
    """Create a file with these permissions from the start. Raises `InvalidSetting` if it exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except FileExistsError:
        raise InvalidSetting(
            f"{path} already exists, and was not changed. Choose another name, or remove it first"
        ) from None
    except OSError as error:
        raise InvalidSetting(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), mode)  # regardless of the umask
        file.write(text)


# ---- the clients of an agent ---------------------------------------------------------------------


def read_clients(path: str | Path) -> dict[str, Peer]:
    """The clients in a file, by their public keys. Raises `InvalidSetting` if the file is not
    valid, or if another user may change it."""
    peers: dict[str, Peer] = {}
    for name, entry in _toml(_text(path, read_trusted_file), path).items():
        where = f"{path}: [{checked_name(name, str(path))}]"
        if not isinstance(entry, Mapping) or set(entry) != {"public-key", "rights"}:
            raise InvalidSetting(
                f'{where} takes public-key = "…" and rights = ["read", "write", "claim"]'
            )
        public = key_bytes(entry["public-key"], f"{where} public-key").hex()
        if public in peers:
            raise InvalidSetting(
                f"{where} has the same key as {peers[public].name}; each client needs its own key"
            )
        peers[public] = Peer(name, rights_of(entry["rights"], where))
    return peers


def rights_of(words: Any, where: str) -> frozenset[Right]:
    """The rights of these names. Raises `InvalidSetting`."""
    names = [str(right) for right in Right]
    if not isinstance(words, list | tuple) or not words or any(word not in names for word in words):
        raise InvalidSetting(
            f"{where}: rights are {words!r}; they must be a list of one or more of "
            f"{', '.join(names)}"
        )
    return frozenset(Right(word) for word in words)


@contextmanager
def changing_clients(path: Path) -> Iterator[dict[str, Peer]]:
    """Yields the clients of a file by their public keys, {} if there is no file. The caller changes
    them in place; if it raises no error, they are then written. A lock file beside it makes another
    process that changes the file wait. Raises `InvalidSetting` for files that cannot be used."""
    try:
        lock = os.open(
            path.with_name(f".{path.name}.lock"),
            os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
        )
    except OSError as error:
        raise InvalidSetting(
            f"{error.filename}: {error.strerror}; a user who changes {path} must be able to "
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
    """Replace the file atomically, because an agent may read it at any moment. It is durable when
    this returns, so that a revoked key stays revoked. Raises `InvalidSetting` if the file cannot be
    written."""
    text = (
        "# The clients that the agent admits; `imap-wal keys allow` and `revoke` write them. "
        "Agents read this file again when it changes.\n"
    )
    for public, peer in sorted(clients.items(), key=lambda client: client[1].name):
        rights = ", ".join(f'"{right}"' for right in Right if right in peer.rights)
        text += f'\n["{peer.name}"]\npublic-key = "{public}"\nrights = [{rights}]\n'
    try:
        LocalStore(str(path.absolute().parent), file_mode=0o644).replace(path.name, text.encode())
    except StorageError as error:
        raise InvalidSetting(str(error)) from error


class Clients:
    """The clients of a file, which is read again after it changed. If it cannot be used, that is
    logged, and the previous clients stay valid. Thread-safe."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._clock = clock
        self._file = Watched(
            path,
            lambda: read_clients(path),
            lambda error: _log.error(
                "clients not read again: the previous ones stay valid", file=path, error=str(error)
            ),
        )
        self._path = path
        self._looked = clock.monotonic()

    def known(self) -> Mapping[str, Peer]:
        """The clients by their public keys: the same object until the file changes."""
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
        ) from None  # the error contains the text


def _toml(text: str, path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: for very long numbers too
        raise InvalidSetting(f"{path}: not TOML: {error}") from None
