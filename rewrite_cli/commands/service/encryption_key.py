"""`imap-wal encryption-key`."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import click

from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.security.encryption import archive_keys
from imap_wal.security.encryption_keys import KEY_BYTES, KeyRing, Keys
from rewrite_cli.console import output as out


@click.group()
def command() -> None:
    """Keys for encryption at rest: docs/how-to/encryption.md says how to use them."""


@command.command()
@click.option(
    "--id",
    "name",
    default="",
    show_default="today's date",
    help="The id of the key; 1 to 64 letters, digits, . _ -",
)
def new(name: str) -> None:
    """Print a new random key, as a line for the file of keys. Anyone who sees it can read the log.

    \b
    Examples:
      (umask 077; imap-wal encryption-key new > /etc/imap-wal/keys)
      imap-wal encryption-key new --id 2026-11
    """
    random = SystemRandomness()
    name = name or datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).date().isoformat()
    key = base64.b64encode((random.token() + random.token())[:KEY_BYTES]).decode()
    line = f"{name}:{key}"
    KeyRing.parse(line, "--id")
    out.raw(line)


@command.command()
@out.output_option
@click.pass_context
def parquet(ctx: click.Context, output: str) -> None:
    """Print the keys of the Parquet files, for other readers. They do not open segments.

    \b
    Example (DuckDB):
      imap-wal --encryption-keys file:/etc/imap-wal/keys encryption-key parquet
      PRAGMA add_parquet_key('wal', 'KEY FROM ABOVE');
      SELECT * FROM read_parquet('NODE/archive/*/*.parquet',
        encryption_config = {footer_key: 'wal'});
    """
    options: dict[str, Any] = ctx.find_root().obj or {}
    source = options.get("encryption_keys") or ""
    if not source:
        raise click.UsageError(
            "name the source of the keys: --encryption-keys or IMAP_WAL_ENCRYPTION_KEYS"
        )
    keys = Keys(source)
    encoded = {name: base64.b64encode(key).decode() for name, key in archive_keys(keys).items()}
    if output == out.JSON:
        out.print_json({"active": keys.key_ring.active, "keys": encoded})
    else:
        for name, key in encoded.items():
            out.raw(f"{name} {key}")
