"""`imap-wal spark`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from rewrite_cli.console import output as out
from rewrite_cli.console.whole_file import whole_file
from rewrite_cli.console.written import writing


@click.group()
def command() -> None:
    """Rewrites on a Spark cluster: `imap-wal rewrite --engine spark` runs them."""


@command.command()
@click.argument("target", metavar="OUT.zip", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--extra",
    "extras",
    multiple=True,
    help="Also the libraries of this extra of imap-wal, such as s3 for s3://; may be repeated.",
)
@out.output_option
def package(target: Path, extras: tuple[str, ...], output: str) -> None:
    """Write imap-wal and its libraries as a zip that Spark unpacks on its workers. Then only
    pyarrow has to be installed there. The libraries are those of this Python, so workers need the
    same minor version of Python and the same kind of machine.

    The command prints the two properties that a rewrite needs.

    \b
    Examples:
      imap-wal spark package imap-wal.zip
      imap-wal spark package imap-wal.zip --extra s3 -o json
    """
    if target.suffix.lower() != ".zip":
        raise click.UsageError(f"{target} does not end with .zip, so Spark would not unpack it")
    from pyspark_imap_wal.package import write_package

    with whole_file(target) as temporary, writing(target):
        written = replace(write_package(temporary, extras), file=target.absolute())
    if output == out.JSON:
        out.print_json(
            {
                "file": str(written.file),
                "bytes": written.bytes,
                "libraries": list(written.libraries),
                "properties": dict(written.properties),
            }
        )
        return
    out.note(f"{out.size(written.bytes)} in {target}: imap-wal, {', '.join(written.libraries)}")
    for name, value in written.properties.items():
        out.echo(f"{name}={value}")
