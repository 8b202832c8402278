"""A file that a command writes whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from rewrite_cli.console.failures import Failed
from rewrite_cli.console.output import F
from rewrite_cli.console.written import STDOUT, NamedOutput, writing

SYSTEM = Path("/dev"), Path("/proc")


def to_option(command: F) -> F:
    """`--to`, as `target`."""
    return click.option(
        "--to",
        "target",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file, written whole or not at all. Default: stdout.",
    )(command)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A name next to the target, which replaces it at the end.

    Args:
        target: The file to write.

    Returns:
        A context manager of the temporary name. After an error the target is as it was. A device
        or pipe is not replaced: then this is the target itself.

    Raises:
        Failed: No file can be created there.
    """
    if _is_special(target):
        yield target
        return
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
        with writing(target):
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def text_file(target: Path | None) -> Iterator[NamedOutput]:
    """The target for text, replaced at the end as by `whole_file`; None: the standard output.
    Raises the error of `whole_file`."""
    if target is None:
        output = NamedOutput(sys.stdout, STDOUT)
        yield output
        output.flush()
        return
    with whole_file(target) as temporary:
        with writing(target):
            file = temporary.open("w", encoding="utf-8", newline="")
        try:
            written = NamedOutput(file, target)
            yield written
            written.flush()
        finally:
            with suppress(OSError):
                file.close()


def _is_special(target: Path) -> bool:
    """Whether it is a device, a pipe or the like, or a name such as /dev/stdout: a link there. But
    /dev/shm has files as any other folder."""
    if target.is_dir():
        return False
    of_system = target.is_symlink() and bool({*SYSTEM} & {*target.absolute().parents})
    return target.exists() and (not target.is_file() or of_system)
