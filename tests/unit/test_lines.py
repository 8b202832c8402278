"""The lines that peers can cause in the log output are limited, and the others are counted."""

from __future__ import annotations

from structlog.testing import capture_logs

from imap_wal.agent.lines import ABOUT_MAX, WINDOW_S, Lines
from tests.support import FakeClock


def test_repeated_line_is_written_once_per_window() -> None:
    """A line is written once per window, and its repetitions are counted."""
    clock = FakeClock()
    lines = Lines(clock)
    with capture_logs() as written:
        for _ in range(100):
            lines.warning("refused", "a", peer="a")
        lines.warning("refused", "b", peer="b")
        lines.report_omitted()
        assert [line["peer"] for line in written] == ["a", "b"]
        clock.advance(WINDOW_S)
        lines.report_omitted()
        assert written[2:] == [
            {
                "event": "log lines left out",
                "lines": {"refused": 99},
                "seconds": 10,
                "log_level": "warning",
            }
        ]
        lines.warning("refused", "a", peer="a")
        assert written[3]["peer"] == "a", "the next window has it again"


def test_a_flood_of_one_event_hides_no_other_one() -> None:
    clock = FakeClock()
    lines = Lines(clock)
    with capture_logs() as written:
        for number in range(1000):
            lines.warning("refused", number)
        lines.info("admitted", "a")
        assert [line["event"] for line in written] == ["refused"] * ABOUT_MAX + ["admitted"]
        for _ in range(100):
            clock.advance(WINDOW_S)
            lines.report_omitted()
    assert [line["lines"] for line in written[ABOUT_MAX + 1 :]] == [{"refused": 1000 - ABOUT_MAX}]
