"""Finds the error of imap-wal in an exception of a Hazelcast client.

The members throw `io.imapwal.hazelcast.NotAppended`, `OutcomeUnknown` and `LogUnavailable`. A
client does not have these classes; it gets only their names: in Java from
`UndefinedErrorCodeException.getOriginClassName()`, in Python as the second argument of
`UndefinedErrorCodeError`. This module does not import `hazelcast-python-client`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from imap_wal.errors import ImapWalError, NotAppended, OutcomeUnknown

PACKAGE = "io.imapwal.hazelcast"
CAUSES_MAX = 32
"""How many causes of an exception are examined. Causes from several members may form a cycle."""


class LogUnavailable(ImapWalError):
    """A member cannot read the log of this map now, so the map is unavailable. This attempt changed
    nothing, but Hazelcast may have made earlier attempts while members joined or left. Start the
    agent that the text names. Then the map becomes available without further action."""


_CLASSES: dict[str, type[ImapWalError]] = {
    f"{PACKAGE}.{kind.__name__}": kind for kind in (NotAppended, OutcomeUnknown, LogUnavailable)
}


def error_of(exception: BaseException) -> ImapWalError | None:
    """Find the error of imap-wal in an exception from `hazelcast-python-client`.

    An operation on several keys (`put_all`, `clear`) reports the error of one key. After
    `NotAppended`, other keys may be stored: read them, as after `OutcomeUnknown`.

    Args:
        exception: the exception that an operation of the client raised.

    Returns:
        A `NotAppended`, `OutcomeUnknown` or `LogUnavailable` with the member's text. It is returned
        and not raised. None if it is another failure (of the client, of Hazelcast, or an invalid
        argument), which is not about the log.
    """
    for cause in islice(_causes(exception), CAUSES_MAX):
        name = cause.args[1] if len(cause.args) > 1 and isinstance(cause.args[1], str) else ""
        kind = _CLASSES.get(name)
        if kind is not None:
            error = kind(_text(str(cause.args[0]), name))
            error.__cause__ = exception
            return error
    return None


def _causes(exception: BaseException) -> Iterator[BaseException]:
    """The exception and its causes. The client passes the cause that a member reported as an
    argument of its exception."""
    waiting = [exception]
    while waiting:
        cause = waiting.pop(0)
        yield cause
        waiting += [argument for argument in cause.args if isinstance(argument, BaseException)]
        waiting += [cause.__cause__] if cause.__cause__ is not None else []


def _text(message: str, name: str) -> str:
    """The text of the member's error, without the client's prefix and the member's stack."""
    return message.partition(f"{name}: ")[2].partition("\n")[0] or message
