"""Times as users type and read them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from imap_wal.checks import SECONDS_MAX
from imap_wal.clock import (
    DURATION,
    MOMENTS,
    SKEW_MS_MAX,
    UNITS_MS,
    SystemClock,
    moment_ms,
    unix_ms,
    utc,
)
from rewrite_cli.console.param_type import ParamType


class Moment(ParamType[int]):
    """Unix milliseconds from a text in one of the forms of `moment_ms`. `past`: later times than
    now are refused, except for the difference that clocks may have."""

    name = "time"

    def __init__(self, *, past: bool = False) -> None:
        self._past = past

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        moment = self._parsed(value, param, ctx)
        if not self._past:
            return moment
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
            return unix_ms(value)
        try:
            return moment_ms(str(value), SystemClock().now_ms())
        except ValueError:
            self.fail(f"{value!r} is not a time: it takes {MOMENTS}", param, ctx)


class Duration(ParamType[float]):
    """Seconds from `30s`, `500ms`, `5m`, `2h`, or a plain number of seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        matched = DURATION.fullmatch(
            text if not text.replace(".", "", 1).isdecimal() else f"{text}s"
        )
        seconds = float(matched[1]) * UNITS_MS[matched[2]] / 1000 if matched else 0
        if not 0 < seconds <= SECONDS_MAX:
            self.fail(
                f"{value!r} is not a duration: it takes 30s, 500ms, 5m or 2h, more than 0 and "
                "less than 68 years",
                param,
                ctx,
            )
        return seconds


def iso(milliseconds: int) -> str:
    """The time as `utc` writes it; empty for 0."""
    return utc(milliseconds) if milliseconds else ""
