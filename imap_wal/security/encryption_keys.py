"""The keys of an encrypted log: their source, and which of them encrypt and decrypt.

    2026-11:q83vEjRW…=     id, colon, 32 bytes in base64; the first key encrypts, all keys decrypt
    2026-05:c2VjcmV0…=     # separated by spaces or line ends; a comment ends with its line
    plain                  first: new files are not encrypted; anywhere: unencrypted files are read

Without `plain`, an unencrypted file is refused: someone without a key could have written it.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from imap_wal.checks import check_source
from imap_wal.errors import EncryptionError, InvalidSetting
from imap_wal.security.secret_files import read_secret_file
from imap_wal.worker import Watched

PLAIN = "plain"
KEY_BYTES = 32
COMMAND_TIMEOUT_S = 60.0

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger("imap_wal")


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Id → key, in the order of the list. `active`: the id of the key for new files, or `plain`.
    `allows_plain`: whether unencrypted files are read."""

    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    active: str = PLAIN
    allows_plain: bool = True

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Raises `InvalidSetting`, which names the number of the invalid item, not its text: that
        may be a secret."""
        words = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
        keys: dict[str, bytes] = {}
        order: list[str] = []
        for number, word in enumerate(words, 1):
            name, colon, encoded = word.partition(":")
            where = f"{source}: item {number}"
            if word != PLAIN:
                if not colon or name == PLAIN or not _ID.fullmatch(name):
                    raise InvalidSetting(
                        f"{where} is not a key: expected id:base64, with an id of 1 to 64 letters, "
                        f"digits, . _ -, or the word {PLAIN}"
                    )
                keys[name] = _key(encoded, where)
            if name in order:
                raise InvalidSetting(f"{where}: {name} is in the list twice")
            order.append(name)
        if not order:
            raise InvalidSetting(f"{source} has no keys; `imap-wal encryption-key new` makes one")
        return cls(keys, order[0], PLAIN in order)

    @property
    def names(self) -> str:
        """The ids, for messages."""
        return ", ".join(self.keys) or "none"


UNENCRYPTED = KeyRing()


def _key(encoded: str, where: str) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        # from None: the error may contain the key
        raise InvalidSetting(f"{where}: the key is not base64") from None
    if len(key) != KEY_BYTES:
        raise InvalidSetting(f"{where}: the key has {len(key)} bytes; it must have {KEY_BYTES}")
    return key


class Keys:
    """A key ring and its source. A file is read again after it changed, and any source if a key id
    is unknown. So a key can be added while the log is open. `fixed` keys are not read again.
    Thread-safe."""

    def __init__(
        self, source: str = "", key_ring: KeyRing | None = None, *, follows: bool = True
    ) -> None:
        """Reads the source, unless `key_ring` is given. `follows`: whether it is read again. Raises
        `InvalidSetting`."""
        check_source(source)
        self.source, self._follows = source, follows
        self._source = Watched(
            _path_of(source) if follows else None,
            lambda: _read(source) if source else UNENCRYPTED,
            lambda error: _log.warning(
                "the keys cannot be read again; the previous ones stay in use: %s", error
            ),
            key_ring,
        )

    @property
    def key_ring(self) -> KeyRing:
        """The current key ring. If its file can no longer be read, the previous one, with a warning
        in the log."""
        return self._source.look()

    def fixed(self) -> Keys:
        """The current keys, which no longer follow their source: for a run that compares them once,
        and must write with nothing else."""
        return Keys(self.source, self.key_ring, follows=False)

    def find(self, file: str, key_id: str) -> bytes:
        """The key of a file. Raises `EncryptionError`."""
        key = self._source.last.keys.get(key_id)
        if key is None and self.source and self._follows:
            key = self._source.read_again().keys.get(key_id)
        if key is None:
            raise EncryptionError(
                file,
                key_id,
                f"it is encrypted with key {key_id!r}, {self.known_ids}",
                self.advice,
                is_missing=True,
            )
        return key

    def demand_plain(self, file: str) -> None:
        """Raises `EncryptionError` unless unencrypted files are allowed."""
        if not self.key_ring.allows_plain:
            reason = (
                "it is not encrypted, but the keys require it: it was written before encryption "
                "was turned on, or without the key"
            )
            raise EncryptionError(
                file,
                "",
                reason,
                f"if it was written before that, add the word {PLAIN!r} to the end of the keys",
            )

    @property
    def known_ids(self) -> str:
        """The known key ids, as text for errors."""
        key_ring = self._source.last
        return (
            f"but the keys given are {key_ring.names}" if key_ring.keys else "but no keys are given"
        )

    @property
    def advice(self) -> str:
        return (
            "add the key to the others"
            if self.source
            else "give the keys: encryption_keys, --encryption-keys or IMAP_WAL_ENCRYPTION_KEYS"
        ) + "; nothing was changed"


def _read(source: str) -> KeyRing:
    kind, _, rest = source.partition(":")
    read: dict[str, Callable[[str], str]] = {"file": _file, "env": _variable, "command": _command}
    shown = f" {rest.strip()}" if kind != "command" else ""  # its arguments may have secrets
    return KeyRing.parse(read[kind](rest.strip()), f"encryption_keys: the {_KINDS[kind]}{shown}")


_KINDS = {"file": "file", "env": "variable", "command": "command"}


def _path_of(source: str) -> Path | None:
    """The path of a file of keys; None for a variable or a command."""
    kind, _, path = source.partition(":")
    return Path(path.strip()).expanduser() if kind == "file" else None


def _file(name: str) -> str:
    path = Path(name).expanduser()
    try:
        return read_secret_file(path).decode("ascii")
    except OSError as error:
        raise InvalidSetting(f"encryption_keys: {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        # from None: the error contains the content of the file
        raise InvalidSetting(f"encryption_keys: {path} is not text in ASCII") from None


def _variable(name: str) -> str:
    # Settings are not read from the environment, but this setting names a variable of it.
    value = os.environ.get(name)
    if value is None:
        raise InvalidSetting(f"encryption_keys: the environment variable {name} is not set")
    return value


def _command(line: str) -> str:
    try:
        done = subprocess.run(
            shlex.split(line),
            stdout=subprocess.PIPE,
            check=True,
            timeout=COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout.decode("ascii")
    except subprocess.CalledProcessError as error:
        # from None: the error contains the output
        raise InvalidSetting(
            f"encryption_keys: the command ended with exit code {error.returncode}"
        ) from None
    except subprocess.TimeoutExpired:
        raise InvalidSetting(
            f"encryption_keys: the command did not end within {COMMAND_TIMEOUT_S:.0f} s"
        ) from None
    except UnicodeDecodeError:
        raise InvalidSetting(
            "encryption_keys: the output of the command is not text in ASCII"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidSetting(
            f"encryption_keys: the command could not be started: {error}"
        ) from None


NO_KEYS = Keys()
