"""A file that a command writes whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rewrite_cli.console.failures import Failed


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A name next to the target, which replaces it at the end.

    Args:
        target: The file to write.

    Returns:
        A context manager of the temporary name. After an error the target is as it was.

    Raises:
        Failed: No file can be created there.
    """
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


@contextmanager
def text_file(target: Path | None) -> Iterator[TextIO]:
    """The target for text, replaced at the end as by `whole_file`; None: the standard output.
    Raises the error of `whole_file`."""
    if target is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    with whole_file(target) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        yield file
