"""Files that a command writes whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rewrite_cli.console.failures import Failed


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A name next to the target, which replaces it at the end. `Failed` if no file can be created
    there."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        temporary.touch()
    except OSError as error:
        raise Failed(
            f"{target} cannot be written: {error.strerror}; name a file in a folder that "
            "exists and that you may write to"
        ) from error
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
