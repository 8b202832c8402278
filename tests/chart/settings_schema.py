"""The agent's settings in values.schema.json, from the classes that the agent reads them into.

python -m tests.chart.settings_schema     writes them into the chart
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from imap_wal.agent.config import AgentConfig
from imap_wal.settings import Settings
from tests.chart.rendering import CHART

FILE = CHART / "values.schema.json"
TYPES = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean"}
NOT_IN_FILES = {"takeover", "place"}


def kind(hint: Any) -> dict[str, Any]:
    """The schema of one type. A null is allowed, because it removes a setting of another file of
    values."""
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"enum": [*map(str, hint), None]}
    if hint in TYPES:
        return {"type": [TYPES[hint], "null"]}
    match get_origin(hint), get_args(hint):
        case origin, (item, end) if origin is tuple and end is ...:
            return {"type": ["array", "null"], "items": {"type": TYPES[item]}}
        case _, (some, none) if none is type(None):
            return kind(some)
    if get_origin(hint) is Mapping or hint is Settings:
        return {"type": ["object", "null"]}
    raise TypeError(f"how does JSON Schema say {hint}?")


def schema_of(settings: type[AgentConfig | Settings]) -> dict[str, Any]:
    """The schema of a table of agent.toml."""

    def known() -> Iterator[tuple[str, dict[str, Any]]]:
        hints = get_type_hints(settings)
        for field in fields(settings):
            if field.name not in NOT_IN_FILES:
                yield field.name, kind(hints[field.name])

    return {"type": "object", "additionalProperties": False, "properties": dict(known())}


def generated() -> str:
    """What values.schema.json should be."""
    schema = json.loads(FILE.read_text())
    agent = schema["properties"]["agent"]["properties"]
    agent["settings"] = schema_of(AgentConfig)
    agent["log"] = schema_of(Settings)
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(generated())
