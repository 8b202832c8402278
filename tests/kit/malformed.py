"""Requests that no member sends."""

from __future__ import annotations

import msgpack

pack = msgpack.packb


def nested(depth: int, opening: bytes = b"\x91") -> bytes:
    return opening * depth + b"\xc0"
