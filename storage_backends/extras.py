"""Libraries outside the core install, and the extra of imap-wal that installs each.

    with needs("archive"):
        import pyarrow

It is in this package because every other package may import it. See
docs/decisions/0034-a-small-core.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRA_OF_SCHEME = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
    "az": "azure",
    "adl": "azure",
    "webhdfs": "hdfs",
    "swebhdfs": "hdfs",
    "hdfs": "hdfs",
}
"""The extra that installs the driver for a scheme. For all other schemes fsspec knows the
driver."""


class MissingExtra(ModuleNotFoundError):
    """A library is not installed. `extra` installs it; the text says how."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"the library {module} is not installed; install it with: pip install "
            f"'imap-wal[{extra}]'",
            name=module,
        )
        self.extra = extra


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports inside this block need an extra of imap-wal.

    `extra`: its name in `pyproject.toml`. Raises `MissingExtra` if a library is not installed.
    Other import errors pass through, including those of a broken install.
    """
    try:
        yield
    except MissingExtra:
        raise
    except ModuleNotFoundError as error:
        raise MissingExtra((error.name or "").partition(".")[0], extra) from error


def extra_of(scheme: str) -> str:
    """The extra that a URL of this scheme needs."""
    return EXTRA_OF_SCHEME.get(scheme, "fsspec")
