"""Libraries outside the core install, and the extra of imap-wal that installs each.

    with needs("archive"):
        import pyarrow

It is in this package because every other package may import it. See
decision 34 in docs/decisions/code.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class MissingExtra(ModuleNotFoundError):
    """A library is not installed, or `installed` is a release without a module that is needed.
    `extra` installs it; the text says how."""

    def __init__(self, module: str, extra: str, installed: str = "") -> None:
        reason = "is not installed"
        if installed:
            reason = f"{installed} is another release than imap-wal needs{_needed(module, extra)}"
        super().__init__(
            f"the library {module} {reason}; install it with: pip install 'imap-wal[{extra}]'",
            name=module,
        )
        self.extra = extra


def _needed(distribution: str, extra: str) -> str:
    """The versions of a distribution that an extra of imap-wal installs, as text."""
    from importlib import metadata  # slow to import, and rarely needed

    with suppress(metadata.PackageNotFoundError):
        for require in metadata.requires("imap-wal") or ():
            named, _, condition = require.partition(";")
            matched = re.fullmatch(r"([\w.-]+)(?:\[.*\])?\s*(.*)", named.strip())
            if (
                matched
                and matched[1] == distribution
                and f"'{extra}'" in condition.replace('"', "'")
            ):
                return f" ({distribution}{matched[2]})"
    return ""


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
        library, _, part = (error.name or "").partition(".")
        raise MissingExtra(library, extra, _installed(library) if part else "") from error


def _installed(library: str) -> str:
    """The version of an installed library; "" if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""
