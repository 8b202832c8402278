"""Attack: listen where a command expects an agent, and answer with anything."""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from tests.cli.conftest import Run, run

__all__ = ["run"]


def framed(header: Any) -> bytes:
    packed = msgpack.packb(header)
    return struct.pack(">I", len(packed)) + packed


ANSWERS = {
    "nothing": b"",
    "no header": b"\0\0",
    "no msgpack": struct.pack(">I", 1) + b"\xc1",
    "nested": struct.pack(">I", 2000) + b"\x91" * 2000,
    "a number": framed(5),
    "an empty list": framed([]),
    "no statistics": framed(["stat", 1]),
    "statistics of another type": framed(["stat", 1, [1]]),
    "fields of other types": framed(["stat", 1, {"healthy": True, "start": [1]}]),
    "missing fields": framed(["stat", 1, {"start": {"waiting": "\x1b[2J"}}]),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_doctor_names_what_is_no_agent(tmp_path: Path, run: Run, answer: bytes) -> None:
    endpoint = f"ipc://{tmp_path}/a.sock"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(endpoint)

        def reply() -> None:
            sender, *_ = socket.recv_multipart()
            socket.send_multipart([sender, answer])

        thread = threading.Thread(target=reply)
        thread.start()
        ended = run("doctor", "--agent", endpoint)
        thread.join()
    assert ended.code == 3, ended
    said = ("is no agent", "is not an agent", "its statistics have another form")
    assert any(text in ended.out for text in said)
    assert "\x1b" not in ended.out
