"""No frame is larger than the format allows."""

from __future__ import annotations

import pytest

from storage_backends.memory import MemoryStore
from tests.kit.commits import batch, committer, frames
from tests.support import row


@pytest.mark.parametrize("limit", ["PAYLOAD_BYTES_MAX", "COUNT_MAX"])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_batches_share_a_frame_up_to_exactly_its_limit(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, limit: str, more: int
) -> None:
    """Three batches fit at the limit and above it, and not one byte or entry below it."""
    size = len(row("k1.0", "v"))
    full = 3 * size if limit == "PAYLOAD_BYTES_MAX" else 6
    monkeypatch.setattr(f"imap_wal.write.committer.{limit}", full + more)
    target = committer(memory)
    count = 1 if limit == "PAYLOAD_BYTES_MAX" else 2
    for number in range(6):
        target.submit(batch(1 + number * count, count))
    target.commit_ready()
    together = 2 if more < 0 else 3
    assert [frame.count for frame in frames(memory)] == [together * count] * (6 // together)
