"""The errors that callers of a commit get after a failure."""

from __future__ import annotations

from imap_wal.errors import Fenced, ImapWalError, NotAppended, OutcomeUnknown


def failed_to(doing: str, node: str, error: Exception) -> NotAppended:
    """The failure of a committer whose log could not do this, because of `error`."""
    failure = NotAppended(
        f"the log of node {node!r} failed to {doing}: {error}; nothing more is acknowledged until "
        "it is opened again"
    )
    failure.__cause__ = error
    return failure


def refusal(failure: ImapWalError | None) -> ImapWalError:
    """The error of a change after the failure: it is not in the log."""
    if isinstance(failure, Fenced):
        error: ImapWalError = Fenced(failure.without_advice, failure.holder, failure.advice)
        error.__cause__ = failure
        return error
    return _caused(NotAppended(f"nothing more is appended: {failure}"), failure)


def not_appended(failure: ImapWalError | None, cause: Exception) -> ImapWalError:
    """The error of a change that is certainly not in the log."""
    return _caused(NotAppended(f"nothing was appended: {failure}"), cause)


def unknown(failure: ImapWalError | None, cause: Exception | None) -> ImapWalError:
    """The error of a change that may be in the log."""
    return _caused(OutcomeUnknown(f"the change may be in the log: {failure}"), cause)


def unconfirmed(cause: Exception) -> ImapWalError:
    """The error of a change that is in the log, but perhaps may not be acknowledged."""
    return OutcomeUnknown(f"the change is in the log, but could not be confirmed: {cause}")


def _caused(error: ImapWalError, cause: BaseException | None) -> ImapWalError:
    error.__cause__ = cause
    return error
