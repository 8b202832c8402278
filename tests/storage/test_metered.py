"""The bytes that pass through a store."""

from __future__ import annotations

from pathlib import Path

from storage_backends import open_store
from storage_backends.metered import Meter


def test_a_meter_counts_what_is_read_and_written(tmp_path: Path) -> None:
    meter = Meter()
    store = meter.on(open_store(str(tmp_path / "root")))
    store.create("a", b"12345")
    (tmp_path / "local").write_bytes(b"123")
    store.create_from("b", str(tmp_path / "local"))
    assert (meter.read_bytes, meter.written_bytes) == (0, 8)
    assert store.read("a", 1, 2) == b"23"
    with store.open_input("b") as file:
        assert file.read() == b"123"
    assert (meter.read_bytes, meter.written_bytes) == (5, 8)
