"""A moment has the same text for commands, for Spark and for Python."""

from __future__ import annotations

import click
import pytest

from imap_wal import table
from imap_wal.clock import MOMENTS, SystemClock, moment_ms
from imap_wal.errors import InvalidSetting
from pyspark_imap_wal.options import AsOf
from rewrite_cli.console.times import Moment

NOW_MS = 1_795_261_005_266
FORMS = {
    "2026-11-21T10:00": 1_795_255_200_000,
    "2026-11-21T10:00:00.123Z": 1_795_255_200_123,
    "2026-11-21T11:00+01:00": 1_795_255_200_000,
    "2026-11-21": 1_795_219_200_000,
    "20261121": 1_795_219_200_000,
    "1795261005266": NOW_MS,
    "@1795261005266": NOW_MS,
    # Also a time of the year 1790, if it were read as one.
    "1790112312345": 1_790_112_312_345,
    "@20261121": 20_261_121,
    "0": 0,
    "2h": NOW_MS - 7_200_000,
    " 1.5s ": NOW_MS - 1_500,
    "250ms": NOW_MS - 250,
    "7d": NOW_MS - 604_800_000,
}


@pytest.mark.parametrize("text", FORMS)
def test_every_form_is_one_moment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: NOW_MS)
    expected = FORMS[text]
    assert moment_ms(text, NOW_MS) == expected
    assert Moment().convert(text, None, None) == expected
    assert AsOf.parse(text).time_ms == expected
    assert table._moment(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "@", "@2026-11-21", "2 hours", "-1", "20269999"])
def test_what_is_no_moment_is_refused_with_all_forms(text: str) -> None:
    with pytest.raises(ValueError):
        moment_ms(text, NOW_MS)
    with pytest.raises(click.BadParameter) as refused:
        Moment().convert(text, None, None)
    assert MOMENTS in refused.value.message
    for entrance in (AsOf.parse, table._moment):
        with pytest.raises(InvalidSetting, match="15m or 2h") as unread:
            entrance(text)
        assert MOMENTS in str(unread.value)
