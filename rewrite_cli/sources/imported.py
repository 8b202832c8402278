"""What an import did, and how it is shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from imap_wal.serializer import shown
from rewrite_cli.console import output as out
from rewrite_cli.sources.source import Source, Stored

SHOWN_MAX = 100
"""At most this many refused entries are shown; all are counted."""


@dataclass
class Counts:
    imported: int = 0
    expired: int = 0
    refused: int = 0


@dataclass
class Imported:
    """What became of the entries of each map. `refused`: the first ones, with the reason."""

    maps: dict[str, Counts]
    refused: list[dict[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def refuse(self, stored: Stored, reason: str) -> None:
        self.maps[stored.map].refused += 1
        self.reasons[reason] += 1
        if len(self.refused) < SHOWN_MAX:
            self.refused.append({"map": stored.map, "key": shown(stored.name), "reason": reason})

    @property
    def imported(self) -> Counter[str]:
        """How many entries of each map can be imported, or were."""
        return Counter({name: counts.imported for name, counts in self.maps.items()})

    @property
    def refusals(self) -> int:
        return sum(counts.refused for counts in self.maps.values())


def show(
    result: Imported,
    source: Source,
    output: str,
    bytes_after: int | None,
    *,
    published: bool,
    dry_run: bool,
) -> None:
    rows = [
        {
            "map": name,
            **(source.changes[name]._asdict() if name in source.changes else {}),
            "imported": counts.imported if published or dry_run else 0,
            "expired": counts.expired,
            "refused": counts.refused,
        }
        for name, counts in result.maps.items()
    ]
    if output == out.JSON:
        out.print_json(
            {
                "dry_run": dry_run,
                "published": published,
                "maps": rows,
                "refused": result.refused,
                "lost": dict(source.lost),
                "torn": [torn._asdict() for torn in source.torn],
                "bytes": {"before": source.bytes, "after": bytes_after},
            }
        )
    else:
        columns = ["would import" if dry_run and name == "imported" else name for name in rows[0]]
        out.print_table(columns, [tuple(row.values()) for row in rows])
        if bytes_after is not None:
            before = out.count(source.bytes, "byte")
            out.note(f"{before} were read, and the log has {out.count(bytes_after, 'byte')}")
    for refused in result.refused[: SHOWN_MAX if output != out.JSON else 0]:
        out.note(f"refused: {refused['map']}[{refused['key']}]: {refused['reason']}")
    if output != out.JSON and result.refusals > len(result.refused):
        out.note(f"and {out.count(result.refusals - len(result.refused), 'more')}")
    for what, number in source.lost.items():
        out.note(f"{what} are not imported: {out.count(number, 'entry has', 'entries have')} some")
    for torn in source.torn[: SHOWN_MAX if output != out.JSON else 0]:
        out.note(
            f"{torn.file} ends in a record that was not written completely, at byte "
            f"{torn.position}: its last {out.count(torn.bytes, 'byte')} were not read"
        )


def advice(result: Imported, *, trusted: bool) -> str:
    classes = [reason for reason in result.reasons if "needs the class" in reason]
    if trusted or not classes:
        return ""
    return (
        "; if no one else could write this source, --trust-pickle reads all classes; with "
        "--serializer pickle, the map keeps them"
    )
