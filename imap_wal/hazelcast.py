"""What an error of a Hazelcast client says about a change, if the map has the plug-in.

The members throw `io.imapwal.hazelcast.NotAppended`, `OutcomeUnknown` and `LogUnavailable`. A
client has none of these classes. It gets their names: in Java from
`UndefinedErrorCodeException.getOriginClassName()`, in Python as the second argument of
`UndefinedErrorCodeError`. Nothing of `hazelcast-python-client` is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from imap_wal.errors import ImapWalError, NotAppended, OutcomeUnknown

PACKAGE = "io.imapwal.hazelcast"
CAUSES_MAX = 32
"""How many causes of an exception are followed. Causes from several members may form a cycle."""


class LogUnavailable(ImapWalError):
    """The log of this map cannot be read by a member now, so the map is not there. This try changed
    nothing; Hazelcast may have tried before, while members came and went. Start the agent that the
    text names; the map comes back by itself."""


_CLASSES: dict[str, type[ImapWalError]] = {
    f"{PACKAGE}.{kind.__name__}": kind for kind in (NotAppended, OutcomeUnknown, LogUnavailable)
}


def error_of(exception: BaseException) -> ImapWalError | None:
    """The error of imap-wal that `exception`, from `hazelcast-python-client`, reports: an instance
    of `NotAppended`, `OutcomeUnknown` or `LogUnavailable` with the member's text, to be raised or
    looked at. None: it is another failure (of the client, of Hazelcast, or a bad argument), and
    says nothing about the log.

    An operation on several keys (`put_all`, `clear`) reports one of them. With `NotAppended`, the
    others may be stored: read them, as after `OutcomeUnknown`.
    """
    for each in islice(_causes(exception), CAUSES_MAX):
        name = each.args[1] if len(each.args) > 1 and isinstance(each.args[1], str) else ""
        kind = _CLASSES.get(name)
        if kind is not None:
            found = kind(_text(str(each.args[0]), name))
            found.__cause__ = exception
            return found
    return None


def _causes(exception: BaseException) -> Iterator[BaseException]:
    """The exception and its causes. The client puts the cause that a member reported into the
    arguments."""
    waiting = [exception]
    while waiting:
        each = waiting.pop(0)
        yield each
        waiting += [argument for argument in each.args if isinstance(argument, BaseException)]
        waiting += [each.__cause__] if each.__cause__ is not None else []


def _text(message: str, name: str) -> str:
    """The member's own words: without the client's, and without the member's stack."""
    return message.partition(f"{name}: ")[2].partition("\n")[0] or message
