"""pyarrow reads and writes Parquet. It is not in the core install
(decision 34 in docs/decisions/code.md): without it, snapshots are segments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from imap_wal.errors import MissingLibrary
from imap_wal.settings import Settings
from storage_backends.extras import MissingExtra


def is_installed() -> bool:
    """Whether Parquet files can be written and read."""
    try:
        return find_spec("pyarrow") is not None
    except ModuleNotFoundError:  # something prevents its import
        return False


def demand_installed(purpose: str) -> None:
    """Raises `MissingLibrary`, which begins with `purpose`, if pyarrow is not installed."""
    if not is_installed():
        raise MissingLibrary(f"{purpose}: {MissingExtra('pyarrow', 'archive')}")


def demand_archives(settings: Settings) -> None:
    """Raises `MissingLibrary` if a setting asks for archives that cannot be written."""
    for name in ("archive_interval_s", "max_total_wal_size"):
        if getattr(settings, name):
            demand_installed(f"{name} writes archives, which are Parquet files")


@contextmanager
def loading(purpose: str) -> Iterator[None]:
    """Imports of modules that need pyarrow. The text of `MissingLibrary` begins with `purpose`."""
    try:
        yield
    except MissingExtra as error:
        raise MissingLibrary(f"{purpose}: {error}") from None
