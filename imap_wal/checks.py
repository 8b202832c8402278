"""Checks of what users pass: locations, modes, folders, names, times, types."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from imap_wal.errors import InvalidSetting, not_text
from storage_backends import StorageError
from storage_backends.location import Location, Place, located, without_secrets

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}

SECONDS_MAX = 2**31
"""68 years; the limit of times in any unit. Python cannot wait for more than about 290 years."""


def location(
    url: Place,
    name: str = "url",
    options: Mapping[str, Any] | None = None,
    file_mode: str = "",
) -> Location:
    """A folder or URL from a user, with the options of the URL, `options` and `file_mode`. Raises
    `InvalidSetting` for any other type, and for an empty `url`."""
    text = url.url if isinstance(url, Location) else url
    text = os.fspath(text) if isinstance(text, os.PathLike) else text
    if not isinstance(text, str):
        raise InvalidSetting(
            f"{name} is {without_secrets(repr(text))}; it takes text or a pathlib.Path"
        )
    if options is not None and not isinstance(options, Mapping):
        raise InvalidSetting(
            f"the options of {name} are of type {type(options).__name__}; they must be a "
            "table, or in Python a dict"
        )
    if not text.strip() and (text or name == "url"):
        problem = f"{name} is {text!r}, which is blank" if text else f"{name} is empty"
        raise InvalidSetting(
            f'{problem}; pass a folder or a URL, as in "/var/lib/maps", "~/maps", '
            '"file:///var/lib/maps" or "s3://bucket/maps"'
        )
    try:
        os.fsencode(text)  # file names that are not UTF-8 are allowed
    except UnicodeEncodeError as error:
        # from None: `error` contains the text
        raise InvalidSetting(f"{name}: {without_secrets(not_text(error))}") from None
    try:
        place = located(url, options)
        return replace(place, file_mode=mode(file_mode, "file_mode")) if file_mode else place
    except StorageError as error:
        raise InvalidSetting(f"{name}: {error}") from None


def mode(text: Any, name: str) -> int:
    """Permissions of a file, as chmod takes them. The owner may read and write; no user may
    execute. Raises `InvalidSetting`."""
    if not isinstance(text, str) or not re.fullmatch(r"0?6[0246]{2}", text):
        raise InvalidSetting(
            f'{name} is {text!r}; it takes the mode of a file as text, such as "0600", '
            '"0640" or "0660"'
        )
    return int(text, 8)


def existing_folder(path: Any, name: str) -> Path:
    """A local folder from a user. Raises `InvalidSetting` if it does not exist."""
    folder = Path(location(path, name).url).expanduser()
    if not os.fspath(path) or not folder.is_dir():
        raise InvalidSetting(
            f"{name} is {os.fspath(path)!r}; there is no such folder: create it, or leave "
            f"{name} out"
        )
    return folder


def check_seconds(value: Any, name: str) -> None:
    """Raises `InvalidSetting` unless this is a number of seconds from 0 to `SECONDS_MAX`."""
    if type(value) not in (int, float) or not 0 <= value <= SECONDS_MAX:
        raise InvalidSetting(
            f"{name} is {value!r}; it takes seconds, a number from 0 to {SECONDS_MAX}"
        )


PORT_MAX = 65535


def check_port(port: int | str, name: str, value: str, least: int = 1) -> None:
    """Raises `InvalidSetting` unless `port`, in the setting `name` with this `value`, is a port
    from `least` to `PORT_MAX`. A larger one would lose its upper bits: another port."""
    if not least <= int(port) <= PORT_MAX:
        raise InvalidSetting(
            f"{name} is {value!r}; its port is {port}, and it takes one from {least} to {PORT_MAX}"
        )


def is_loopback_host(host: str) -> bool:
    """Whether only this machine can connect there. A name of a network interface does not count,
    because its addresses are not known."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


KEY_SOURCES = ("file", "env", "command")


def check_source(text: str) -> None:
    """Raises `InvalidSetting` unless this names a source of keys. The error does not show the text,
    which may be a key."""
    kind, _, rest = text.partition(":")
    if text and (kind not in KEY_SOURCES or not rest.strip()):
        raise InvalidSetting(
            "encryption_keys takes the source of the keys: file:PATH, env:NAME or command:COMMAND"
        )


def nearest(name: str, names: Iterable[str]) -> str:
    """Text for the error about an unknown name: the most similar known name, or all known names."""
    names = sorted(names)
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {near[0]}?" if near else f"the known names are {', '.join(names)}"


def refuse_wrong_types(settings: Any) -> None:
    """Raises `InvalidSetting` for the first field of a dataclass with a value of a wrong type."""
    for field in (field for field in fields(settings) if field.init):
        value = getattr(settings, field.name)
        kinds, takes = _TYPES.get(str(field.type), ((type(value),), ""))
        if type(value) not in kinds:
            raise InvalidSetting(
                f"{field.name} is {without_secrets(repr(value))}; it takes {takes}"
            )
