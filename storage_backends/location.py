"""Where a storage is: text that may be shown, and options, which are kept separately.

    s3://bucket/maps?key=…&secret=…      s3://bucket/maps       {"key": …, "secret": …}
    sftp://user:password@host/maps       sftp://user@host/maps  {"password": …}
    /var/lib/maps?                       a path may have a question mark

A URL is split as soon as a user passes it. From then on it is a `Location`, whose text has no
options, so code that prints, logs, stores or compares it cannot show a secret. Only `open_store`
uses the options. Drivers have the secrets: `storage_backends.veil` removes them from their errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import parse_qsl

from storage_backends.errors import StorageError
from storage_backends.registry import backend_of, scheme_of

HIDDEN = "***"
PRIVATE = 0o600
"""The mode of new files."""

_QUERY = re.compile(r"([A-Za-z][\w+.:-]*://[^\s?'\"]*)\?[^\s'\"]+")
_PASSWORD = re.compile(r"([A-Za-z][\w+.:-]*://[^\s/?:@'\"]*):[^\s/'\"]+@")


class Location(str):
    """A folder or URL without its options; `located` makes it.

    `wal_dir`: the place of the segments if the caller named one ("": the root names it).
    `file_mode`: of new files on a local storage; folders get the same and the right to enter.
    `place_options`: options by place, as in a file of credentials, for segments whose place only
    the root names. `encryption_keys`: where the keys come from, not the keys themselves; used by
    `imap_wal.security.encryption`, not by stores. `disk_of`: of a place of segments: the folder of
    the only node whose segments are there ("": all nodes')."""

    __slots__ = ("disk_of", "encryption_keys", "file_mode", "options", "place_options", "wal_dir")
    options: Mapping[str, Any]
    wal_dir: str
    file_mode: int
    place_options: Mapping[str, Mapping[str, Any]]
    encryption_keys: str
    disk_of: str

    def __new__(
        cls,
        text: str,
        options: Mapping[str, Any] | None = None,
        wal_dir: str = "",
        file_mode: int = PRIVATE,
        place_options: Mapping[str, Mapping[str, Any]] | None = None,
        encryption_keys: str = "",
        disk_of: str = "",
    ) -> Self:
        made = super().__new__(cls, text)
        made.options, made.wal_dir, made.file_mode, made.place_options = (
            dict(options or {}),
            wal_dir,
            file_mode,
            place_options or {},
        )
        made.encryption_keys, made.disk_of = encryption_keys, disk_of
        return made

    def _with(self, text: str | None = None, **changes: Any) -> Location:
        attributes = {name: getattr(self, name) for name in self.__slots__}
        return Location(self if text is None else text, **{**attributes, **changes})

    def moved(self, text: str) -> Location:
        """The same location with another text."""
        return self._with(text)

    def optioned(self, options: Mapping[str, Any]) -> Location:
        """The same location with more options, which override its own."""
        return self._with(options={**self.options, **options})

    def with_wal_dir(self, wal_dir: str) -> Location:
        """The same root, with its segments at `wal_dir`."""
        return self._with(wal_dir=wal_dir)

    def with_keys(self, encryption_keys: str) -> Location:
        """The same root, with keys from `encryption_keys`."""
        return self._with(encryption_keys=encryption_keys)

    def as_disk_of(self, node_folder: str) -> Location:
        """The same place of segments, as the own disk of one node."""
        return self._with(disk_of=node_folder)

    def knowing(self, place_options: Mapping[str, Mapping[str, Any]]) -> Location:
        """The same with the known options for it and for its `wal_dir`; existing options win.
        Raises the error of `located`."""
        fitting = [name for name in place_options if self == name or self.startswith(f"{name}/")]
        options = place_options[max(fitting, key=len)] if fitting else {}
        wal_dir = located(self.wal_dir).knowing(place_options) if self.wal_dir else ""
        return self._with(
            options={**options, **self.options}, wal_dir=wal_dir, place_options=place_options
        )

    @property
    def scheme(self) -> str:
        """`file` for a path."""
        return scheme_of(self)

    @property
    def authority(self) -> str:
        """The server, or the bucket; "" for a local folder."""
        return "" if backend_of(self).is_folder else self.partition("://")[2].partition("/")[0]


_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def located(url: str, options: Mapping[str, Any] | None = None) -> Location:
    """Split a URL; `options` override those in it. Raises `StorageError` for unreadable options,
    without showing them."""
    if isinstance(url, Location):
        return url.optioned(options or {})
    url_options: dict[str, Any] = {}
    if "://" in url:
        protocol, _, rest = url.partition("://")
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        user, at, host = authority.rpartition("@")
        user, colon, password = user.partition(":")
        if at and colon:
            url_options["password"] = password
            rest = f"{user}@{host}{slash}{path}"
        url_options.update(_query_options(query))
        url = f"{protocol}://{rest}"
    elif _ONE_SLASH.match(url):
        # Not a folder of this name: its options would be shown. The text may have secrets.
        scheme = url.partition(":")[0]
        raise StorageError(
            f"{scheme}:/… has one slash after its scheme: write {scheme}://…, or ./{scheme}:/… for "
            "a folder of this name"
        )
    return Location(url, {**url_options, **(options or {})})


def _query_options(query: str) -> dict[str, Any]:
    """`a=1&anon=true&client_kwargs={"region_name": "eu"}`: text, except for true, false and JSON
    objects. Never numbers, because a secret key may look like one."""
    options: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if value in ("true", "false"):
            options[key] = value == "true"
        elif value.startswith("{"):
            try:
                options[key] = json.loads(value)
            except ValueError as error:
                # From None: `error` has the text.
                raise StorageError(f"option {key} of the URL is not JSON: {error}") from None
        else:
            options[key] = value
    return options


def without_secrets(text: str) -> str:
    """A text for people, with the options and passwords of all URLs hidden."""
    return _PASSWORD.sub(rf"\1:{HIDDEN}@", _QUERY.sub(rf"\1?{HIDDEN}", text))


def why_not_followed(root: Location, wal_url: str) -> str:
    """Why the segments' URL that a root names is not trusted; "" if it is. Anyone who can write a
    root can name any URL there: opening it could send this user's credentials to that server."""
    place = Location(wal_url)
    if ("?" in wal_url and "://" in wal_url) or without_secrets(wal_url) != wal_url:
        return "it has options"
    if place.scheme != root.scheme:
        return f"it is on {place.scheme!r}, but the root is on {root.scheme!r}"
    if not backend_of(place).names_bucket and place.authority != root.authority:
        return f"it is on {place.authority!r}, but the root is on {root.authority!r}"
    return ""


def of_wal_dir(root: Location, wal_dir: Location) -> Location:
    """`wal_dir` with the root's mode. On the same server or bucket, and without own options, it
    gets those of the root."""
    same = (root.scheme, root.authority) == (wal_dir.scheme, wal_dir.authority)
    return Location(
        wal_dir,
        root.options if same and not wal_dir.options else wal_dir.options,
        file_mode=root.file_mode,
        disk_of=wal_dir.disk_of,
    )
