"""The contents of the golden logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"

CONTENTS: dict[str, dict[str, dict[Any, Any]]] = {}
CONTENTS["log-archives"] = {
    **{
        f"m{number}": {**{str(turn): turn for turn in range(4)}, "newest": 3} for number in range(4)
    },
    "../a b": {b"\x00\xff": b"raw"},
    "orders": {number: "second" if number < 5 else "first" for number in range(20) if number != 7},
    "cleared": {"after": "the clear"},
    "in a segment": dict.fromkeys(range(20), "again"),
}
CONTENTS["log-part-lists"] = {
    "orders": {f"{number:02d}": "second" if number == 7 else "first" for number in range(40)},
    "small": {"only": 1},
    "in a segment": {"key": "value"},
}
