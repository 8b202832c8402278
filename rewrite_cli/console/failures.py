"""The exit code and the message of each error. The message is one line: what happened, where, and
what to do."""

from __future__ import annotations

import errno
import io
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import click

from imap_wal.errors import Conflict, Fenced, ImapWalError, InvalidSetting, LostRace, WriterLocked
from imap_wal.inspect.advice import advice
from rewrite_cli.console import interrupts
from rewrite_cli.console.written import STDOUT
from storage_backends import Locked, MissingExtra, NoSpace, NotFound, StorageError, with_url
from storage_backends.location import Place, without_secrets

CLEAN, FAILED, USAGE, FINDINGS, LOCKED = 0, 1, 2, 3, 4


class Failed(click.ClickException):
    """The command failed. The text describes why, and what to do."""

    exit_code = FAILED


@contextmanager
def opening(place: Place) -> Iterator[None]:
    """Raises `Failed` if the storage of a place cannot be opened, or its library is missing."""
    try:
        yield
    except (StorageError, ImportError) as error:
        raise Failed(with_url(place, error)) from error


def exit_code(error: BaseException) -> int:
    """The exit code of a process."""
    match error:
        case click.exceptions.Exit() | click.ClickException():
            return error.exit_code
        case KeyboardInterrupt() | click.Abort():
            return interrupts.exit_code()
        case WriterLocked() | LostRace() | Fenced() | Conflict() | Locked():
            return LOCKED
        case InvalidSetting():
            return USAGE
        case _:
            return FAILED


def message(error: BaseException) -> str:
    """The error as one line for the user."""
    match error:
        case click.ClickException():
            return error.format_message()
        case KeyboardInterrupt() | click.Abort():
            return "stopped"
        case ImapWalError():
            return "; ".join(filter(None, (error.without_advice, advice(error))))
        case NoSpace():
            return f"{error}; the storage is full: free space, then run the command again"
        case NotFound():
            return (
                f"{error}; another process may have removed it since it was listed: run the "
                "command again"
            )
        case StorageError():
            return str(error)
        case MissingExtra():
            return str(error)
        case OSError() if error.errno == errno.EBADF:  # of click, such as --help
            return f"{STDOUT} is closed: write to another place"
        case OSError():
            return str(error)
        case _:
            return (
                f"unexpected {type(error).__name__}: {error}; this is a bug in imap-wal; --debug "
                "shows where"
            )


def report(error: BaseException, debug: bool = False) -> int:
    """Print the error to stderr and return the exit code."""
    if isinstance(error, SystemExit):
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            return CLEAN  # a closed pipe: `imap-wal dump URL | head` is not an error
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    # Imported here, because it takes time to load.
    from rewrite_cli.console import output as out

    if debug:
        sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show(sys.stderr)
    elif isinstance(error, click.UsageError):
        # Click quotes the command line, which may have secrets.
        shown, text = io.StringIO(), error.format_message() + _place_of_option(error)
        click.UsageError(without_secrets(text), error.ctx).show(shown)
        out.echo(shown.getvalue().removesuffix("\n"), err=True)
    else:
        # A line end in our own errors is that of a name; other libraries write several lines.
        ours = isinstance(error, click.ClickException | ImapWalError)
        text = out.shown(message(error)) if ours else " ".join(message(error).split("\n"))
        out.echo(out.styled("error:", fg="red", bold=True) + f" {without_secrets(text)}", err=True)
    return exit_code(error)


def _place_of_option(error: click.UsageError) -> str:
    """The right place of an option of all commands that was given after the command."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    root = error.ctx.find_root()
    root_options = {name for param in root.command.params for name in param.opts}
    if error.ctx is root or error.option_name not in root_options:
        return ""
    return f" Write it before the command: imap-wal {error.option_name} ... {error.ctx.info_name}"
