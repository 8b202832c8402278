"""What the driver of a storage prints in another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from imap_wal.retention.other_process import OtherProcess
from tests.kit.noisy import Noisy


def test_output_of_a_driver_does_not_mix_with_answers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It appears in the error output of this process."""
    process = OtherProcess(tmp_path.as_uri(), keep_s=60)
    try:
        for text in ("noise", "more noise"):
            assert process.run(Noisy(tmp_path, text)) == text
    finally:
        process.stop()
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.count("more noise") == 3
