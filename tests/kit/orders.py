"""A log of orders."""

from __future__ import annotations

LIVE = {
    **{f"o{n}": {"state": "new"} for n in (0, 5, 6, 7, 8, 9)},
    "o1": {"state": "paid"},
    "o3": {"state": "sent"},
    "o4": {"state": "back"},
}
