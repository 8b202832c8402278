"""The entry point of the command `imap-wal`. Without the extra `cli` it prints what to install."""

from __future__ import annotations

import sys
from typing import Any

from rewrite_cli.console.interrupts import ends_the_process


def main() -> Any:
    """Run the command line; exits with its code, or with 1 if one of its libraries is missing."""
    with ends_the_process():
        from storage_backends.extras import MissingExtra

        try:
            from rewrite_cli.cli import main as run
        except MissingExtra as error:
            sys.exit(f"error: {error}")
    return run()


if __name__ == "__main__":
    main()
