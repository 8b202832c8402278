"""Where the command `imap-wal` begins. Without the extra `cli` it says what to install."""

from __future__ import annotations

import sys
from typing import Any

from rewrite_cli.console.interrupts import ends_the_process


def main() -> Any:
    """Run the command line; ends with its exit code, or with 1 if a library of it is missing."""
    with ends_the_process():
        from storage_backends.extras import MissingExtra

        try:
            from rewrite_cli.cli import main as run
        except MissingExtra as error:
            sys.exit(f"error: {error}")
    return run()


if __name__ == "__main__":
    main()
