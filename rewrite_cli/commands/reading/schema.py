"""`imap-wal schema`."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain, islice

import click

from imap_wal.decoder import Decoder
from imap_wal.entry import Row
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, Failed
from rewrite_cli.console.progress import working
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.entries.live import Reading, merge_all, partial_option
from rewrite_cli.entries.typed import one_map


@click.command()
@selection_options(nodes=False)
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="How many entries are looked at.",
)
@partial_option
@out.output_option
def command(selection: Selection, sample: int, partial: bool, output: str) -> int:
    """Propose a schema for the values of a map, from a sample of its live entries. `query`,
    `export`, imap_wal.scan and Spark take it.

    A note says how many values of the sample do not fit it. What the sample does not show, such as
    a field that is rare, is not in it: correct it by hand.

    \b
    Examples:
      imap-wal schema /var/lib/maps --map orders
      imap-wal schema /var/lib/maps --map orders -o json
    """
    from imap_wal.sql.columns import TypedColumns, cells_of
    from imap_wal.sql.proposal import proposed
    from imap_wal.sql.types import parsed

    name = one_map(selection)
    with working("reading") as tell, ExitStack() as stack:
        context, clusters = stack.enter_context(selection.open())
        merged = merge_all(context, clusters, selection, stack, tell, Reading(partial))
        selection.note_empty(name for cluster in merged for name in cluster.maps)
        found: list[tuple[Decoder, list[Row]]] = []
        for cluster in merged:
            rows = chain.from_iterable(chain.from_iterable(map(cluster.rows, cluster.maps)))
            found.append((cluster.decoder, [*islice(rows, sample)]))
            sample -= len(found[-1][1])
        proposal = proposed(decoder.value(row) for decoder, rows in found for row in rows)
        if not proposal.types:
            raise Failed(f"no value of map {name!r} can be decoded: there is nothing to propose")
        misfits = [
            text
            for decoder, rows in found
            for text in TypedColumns(parsed(str(proposal)), decoder).of(cells_of(rows))[-1]
            if text.is_valid
        ]
        count = sum(len(rows) for _, rows in found)
    if proposal.left_out:
        names = out.names([*map(repr, proposal.left_out)])
        out.note(f"SQL cannot have these fields beside the others: {names}")
    out.note(f"from {out.count(count, 'entry', 'entries')}; {len(misfits):,} of them do not fit")
    if output == out.JSON:
        out.print_json(
            {
                "map": name,
                "schema": str(proposal),
                "columns": [{"name": each, "type": of} for each, of in proposal.types.items()],
                "entries": count,
                "misfits": len(misfits),
            }
        )
    else:
        out.echo(out.shown(str(proposal)))
    return CLEAN
