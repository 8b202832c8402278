"""The chart's schema of values, without helm."""

from __future__ import annotations

from tests.chart import settings_schema


def test_the_schema_has_the_settings_of_the_agent() -> None:
    """If not: python -m tests.chart.settings_schema"""
    assert settings_schema.FILE.read_text() == settings_schema.generated()
