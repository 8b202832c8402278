"""A file of secrets, separate from URLs and settings: the options of storages, by URL.

    ["s3://bucket"]          for s3://bucket and everything below it; the longest match counts
    key = "…"
    secret = "…"

Options are used only for the URLs in this file, even if another URL comes from the data of a root.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from imap_wal.errors import InvalidSetting
from imap_wal.security.secret_files import read_secret_file
from storage_backends.location import Location, located, without_secrets


class Credentials:
    """The content of a credentials file; empty if there is no file."""

    def __init__(self, places: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._places = places or {}

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file. Raises `InvalidSetting` if it cannot be read, if another user can read or
        replace it, or if it does not have the format above. No error shows a value."""
        try:
            places = tomllib.loads(read_secret_file(path).decode())
        except OSError as error:
            raise InvalidSetting(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            # from None: `error` contains the content of the file
            raise InvalidSetting(f"{path}: not UTF-8 at byte {error.start}") from None
        except (ValueError, RecursionError) as error:  # ValueError: also for very long numbers
            raise InvalidSetting(f"{path}: not TOML: {error}") from None
        for name, options in places.items():
            shown = without_secrets(name)
            if not isinstance(options, Mapping):
                raise InvalidSetting(
                    f"{path}: {shown} is not a table; write a place as the line "
                    '["s3://bucket"], and its options below that line, as in key = "…"'
                )
            if "://" not in name or located(name).options:
                raise InvalidSetting(
                    f"{path}: {shown!r} is not the URL of a storage without options, as in "
                    '["s3://bucket"]'
                )
        return cls({name.rstrip("/"): options for name, options in places.items()})

    def given_to(self, url: Location) -> Location:
        """The location with its options added, and with the options for its segments, even if only
        the root names their place. Options that the location already has take precedence."""
        return url.knowing(self._places)
