"""The contents of the golden logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"

CONTENTS: dict[str, dict[str, dict[Any, Any]]] = {}
CONTENTS["log-v1"] = {
    "orders": {
        "1": {"state": "paid"},
        "3": {"state": "new"},
        "ü/%": {"state": "odd", "lines": [1, 2.5, None, b"\x00"]},
        7: "a number for a key",
    },
    "../a b": {b"\x00\xff": b"raw"},
    "after": {number: number * number for number in range(50)},
}
CONTENTS["log-clears"] = {
    "archived": {"after": "the clear"},
    "rewritten": {},
    "in a segment": dict.fromkeys(range(20), "again"),
}
CONTENTS["log-by-key"] = {
    "orders": {number: "second" if number < 5 else "first" for number in range(20) if number != 7},
    "others": {"only": 1},
    "in a segment": {"key": "value"},
}
CONTENTS["log-level"] = CONTENTS["log-by-key"]
CONTENTS["log-lists"] = {
    f"m{number}": {
        **{str(turn): turn for turn in range(4)},
        "newest": 3,
        **({"in a segment": True} if number == 0 else {}),
    }
    for number in range(4)
}
CONTENTS["log-packed"] = CONTENTS["log-lists"]
CONTENTS["log-part-lists"] = {
    "orders": {f"{number:02d}": "second" if number == 7 else "first" for number in range(40)},
    "small": {"only": 1},
    "in a segment": {"key": "value"},
}
