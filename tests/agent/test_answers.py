"""Requests of entries, and their answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal.agent.transport.router import parts
from tests.agent.harness import config, plugin, serving
from tests.kit.ports import free_port


def test_an_answer_ends_with_the_last_requested_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not look for more entries until its time is over."""
    monkeypatch.setattr("imap_wal.agent.reads.reads.LOAD_KEYS", 2)
    with serving(settings := config(tmp_path)) as agent, plugin(settings) as member:
        member.put(a="1", b="2", c="3")
        looks: list[int] = []
        view = agent._reads._view
        load = view.load_some

        def counted(name: str, keys: Any, bytes_max: int) -> Any:
            looks.append(len(keys))
            return load(name, keys, bytes_max)

        monkeypatch.setattr(view, "load_some", counted)
        assert member.load("a", "b", "c") == {"a": ("1", 0), "b": ("2", 0), "c": ("3", 0)}
        assert looks == [2, 1]


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_request_with_a_third_frame_is_refused(tmp_path: Path, kind: str) -> None:
    """Its answer could be about either of two payloads."""
    settings = config(tmp_path)
    if kind == "tcp":
        settings = replace(settings, endpoint=f"tcp://127.0.0.1:{free_port()}")
    with serving(settings), plugin(settings) as member:
        member.put(a="1")
        socket = member.client._socket
        payload = msgpack.packb(b"a")
        socket.send_multipart([msgpack.packb(["load", 7, "orders", 1]), payload, payload])
        assert socket.poll(20_000), "no answer"
        header = parts(socket.recv())[0]
        assert header[0] == "error" and "3 frames" in header[3], header
