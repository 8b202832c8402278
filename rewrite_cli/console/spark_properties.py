"""Properties of Spark, from `--spark-conf` and from the TOML file.

[spark]                              spark.master, spark.executor.memory, …
master = "spark://host:7077"
executor.memory = "4g"
"spark.speculation.interval" = "1s"  the whole name works too
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

PREFIX = "spark."


def of_flags(flags: Iterable[str]) -> dict[str, str]:
    """Properties from texts `KEY=VALUE`. Raises `UsageError`, without showing a value: it may be a
    secret."""
    properties = {}
    for text in flags:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith(PREFIX):
            raise click.UsageError(
                f"--spark-conf takes NAME=VALUE, with the name of a property of Spark, as in "
                f"spark.executor.memory=4g; the name here is {name.strip()!r}"
                if equals
                else "--spark-conf takes NAME=VALUE, as in spark.executor.memory=4g; there is no ="
            )
        properties[name.strip()] = value
    return properties


def of_table(path: Path, table: Mapping[str, Any]) -> dict[str, str]:
    """Properties from the table `[spark]`. Raises `UsageError`, without showing a value."""
    return {
        name if name.startswith(PREFIX) else f"{PREFIX}{name}": value
        for name, value in _flat(path, table, "")
    }


def _flat(path: Path, table: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{above}{key}"
        match value:
            case Mapping():
                yield from _flat(path, value, f"{name}.")
            case bool():
                yield name, "true" if value else "false"
            case str() | int() | float():
                yield name, str(value)
            case _:
                raise click.UsageError(
                    f"{path}: [spark] {name} is a {type(value).__name__}; a property of Spark is "
                    "text, a number, true or false"
                )
