"""The audit line on stderr, for each command that gives up data, takes over a log, or decides which
clients may connect.

The service manager or the user of the command keeps stderr. The same line is written to the
system's log, if there is one.
"""

from __future__ import annotations

import os
import syslog
from pathlib import Path

from rewrite_cli.console import output as out
from storage_backends.location import without_secrets
from storage_backends.ownership import user_name

_SUDO = "SUDO_USER"


def audit(action: str, **about: object) -> None:
    """Record that the user of this process did `action`."""
    details = " ".join(
        f"{name}={without_secrets(str(value))!r}"
        for name, value in {**about, "by": _user()}.items()
    )
    line = f"audit: {action}: {details}"
    out.note(line)
    if Path("/dev/log").exists():
        syslog.openlog("imap-wal", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
        syslog.syslog(syslog.LOG_NOTICE, line)
        syslog.closelog()


def _user() -> str:
    """The user of this process; with sudo, also the user who ran it."""
    caller = os.environ.get(_SUDO, "")
    return user_name(os.geteuid()) + (f", by sudo of {caller}" if caller else "")
