"""The chart's schema of values, without helm."""

from __future__ import annotations

import json
import re

import yaml

from tests.chart import settings_schema
from tests.chart.rendering import CHART


def test_the_schema_has_the_settings_of_the_agent() -> None:
    """If not: python -m tests.chart.settings_schema"""
    assert settings_schema.FILE.read_text() == settings_schema.generated()


def test_every_map_is_durable_by_default() -> None:
    """A section of a map in `cluster.config` must not take the map out of the log."""
    cluster = yaml.safe_load((CHART / "values.yaml").read_text())["cluster"]
    assert (cluster["durableMaps"], cluster["transientMaps"]) == (["*"], [])
    assert cluster["durableStructures"] == "warn"
    templates = (CHART / "templates" / "_helpers.tpl").read_text()
    assert "map-store" not in templates, "it would be for the maps of one section only"


def test_few_maps_of_hazelcast_can_be_durable() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    names = schema["properties"]["cluster"]["properties"]["durableMaps"]["items"]["pattern"]
    assert [
        name
        for name in ("orders", "*", "__sql.catalog", "__jet.*", "__jet.ids", "__*", "a,b")
        if re.search(names, name)
    ] == ["orders", "*", "__sql.catalog", "__jet.*"]
