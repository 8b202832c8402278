"""Times as users type and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import click

from imap_wal.checks import SECONDS_MAX
from imap_wal.clock import utc
from rewrite_cli.console.param_type import ParamType

_AGO = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Moment(ParamType[int]):
    """Unix milliseconds from `2026-11-21T10:00`, `2026-11-21T10:00:00+01:00`, `15m` or `2h` (ago),
    `@1795261005266`. Without a zone: UTC. `past`: later times than now are refused, except for the
    difference that clocks may have."""

    name = "time"

    def __init__(self, *, past: bool = False) -> None:
        self._past = past

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        moment = self._parsed(value, param, ctx)
        if not self._past:
            return moment
        from imap_wal.clock import SKEW_MS_MAX, SystemClock

        now_ms = SystemClock().now_ms()
        if moment > now_ms + SKEW_MS_MAX:
            self.fail(
                f"{value!r} is in the future: it is {iso(moment)}, and the clock of this machine "
                f"says {iso(now_ms)}; at most {SKEW_MS_MAX // 60_000} minutes more are accepted, "
                "because the clocks of machines differ",
                param,
                ctx,
            )
        return moment

    def _parsed(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if isinstance(value, datetime):
            return _to_ms(value)
        text = str(value).strip()
        if text.startswith("@") and text[1:].isdecimal():
            return int(text[1:])
        ago = _AGO.fullmatch(text)
        if ago:
            from imap_wal.clock import SystemClock

            return SystemClock().now_ms() - round(float(ago[1]) * _UNITS_MS[ago[2]])
        try:
            return _to_ms(datetime.fromisoformat(text))
        except ValueError:
            self.fail(
                f"{value!r} is not a time: it takes 2026-11-21T10:00 (UTC), "
                "2026-11-21T10:00+01:00, 15m or 2h (ago), or @ and Unix milliseconds",
                param,
                ctx,
            )


class Duration(ParamType[float]):
    """Seconds from `30s`, `500ms`, `5m`, `2h`, or a plain number of seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        matched = _AGO.fullmatch(text if not text.replace(".", "", 1).isdecimal() else f"{text}s")
        seconds = float(matched[1]) * _UNITS_MS[matched[2]] / 1000 if matched else 0
        if not 0 < seconds <= SECONDS_MAX:
            self.fail(
                f"{value!r} is not a duration: it takes 30s, 500ms, 5m or 2h, more than 0 and "
                "less than 68 years",
                param,
                ctx,
            )
        return seconds


def _to_ms(moment: datetime) -> int:
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def iso(milliseconds: int) -> str:
    """The time as `utc` writes it; empty for 0."""
    return utc(milliseconds) if milliseconds else ""
