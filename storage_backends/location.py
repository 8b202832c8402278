"""Where a storage is: text that may be shown, and options, which are kept separately.

    s3://bucket/maps?key=…&secret=…      s3://bucket/maps       {"key": …, "secret": …}
    sftp://user:password@host/maps       sftp://user@host/maps  {"password": …}
    /var/lib/maps?                       a path may have a question mark

A URL is split as soon as a user passes it. From then on it is a `Location`, whose text has no
options, so code that prints or logs it cannot show a secret. Only `open_store` uses the options.
Drivers have the secrets: `storage_backends.veil` removes them from their errors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from storage_backends.errors import StorageError
from storage_backends.registry import backend_of, scheme_of

HIDDEN = "***"
PRIVATE = 0o600
"""The mode of new files."""

_QUERY = re.compile(r"([A-Za-z][\w+.:-]*://[^\s?'\"]*)\?[^\s'\"]+")
_PASSWORD = re.compile(r"([A-Za-z][\w+.:-]*://[^\s/?:@'\"]*):[^\s/'\"]+@")


@dataclass(frozen=True, slots=True)
class Location:
    """A folder or URL without its options (`url`), and what opens it; `located` makes it. `str`
    and `repr` show no options.

    `wal_dir`: the place of the segments if the caller named one (None: the root names it).
    `file_mode`: of new files on a local storage; folders get the same and the right to enter.
    `place_options`: options by place, as in a file of credentials, for segments whose place only
    the root names. `encryption_keys`: where the keys come from, not the keys themselves; used by
    `imap_wal.security.encryption`, not by stores. `disk_of`: of a place of segments: the folder of
    the only node whose segments are there ("": all nodes')."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    wal_dir: Location | None = None
    file_mode: int = PRIVATE
    place_options: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict, repr=False, hash=False
    )
    encryption_keys: str = ""
    disk_of: str = ""

    def __str__(self) -> str:
        return self.url

    def knowing(self, place_options: Mapping[str, Mapping[str, Any]]) -> Location:
        """The same with the known options for it and for its `wal_dir`; existing options win."""
        fitting = [name for name in place_options if f"{self.url}/".startswith(f"{name}/")]
        options = place_options[max(fitting, key=len)] if fitting else {}
        return replace(
            self,
            options={**options, **self.options},
            wal_dir=self.wal_dir and self.wal_dir.knowing(place_options),
            place_options=place_options,
        )

    @property
    def scheme(self) -> str:
        """`file` for a path."""
        return scheme_of(self.url)

    @property
    def authority(self) -> str:
        """The server, or the bucket; "" for a local folder."""
        is_folder = backend_of(self.url).is_folder
        return "" if is_folder else self.url.partition("://")[2].partition("/")[0]


Place: TypeAlias = str | os.PathLike[str] | Location
"""Where a storage is, as callers pass it: text may have options."""

_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def located(place: Place, options: Mapping[str, Any] | None = None) -> Location:
    """Split a URL; `options` override those in it. Raises `StorageError` for unreadable options,
    without showing them."""
    if isinstance(place, Location):
        return replace(place, options={**place.options, **(options or {})})
    url, url_options = os.fspath(place), dict[str, Any]()
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
    if not backend_of(wal_url).names_bucket and place.authority != root.authority:
        return f"it is on {place.authority!r}, but the root is on {root.authority!r}"
    return ""


def of_wal_dir(root: Location, wal_dir: Location) -> Location:
    """`wal_dir` with the root's mode. On the same server or bucket, and without own options, it
    gets those of the root."""
    same = (root.scheme, root.authority) == (wal_dir.scheme, wal_dir.authority)
    return replace(
        wal_dir,
        options=root.options if same and not wal_dir.options else wal_dir.options,
        file_mode=root.file_mode,
        place_options={},
    )
