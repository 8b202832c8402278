"""What tests of the agent share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from imap_wal.agent.config import AgentConfig
from tests.agent.harness import config
from tests.kit.halves import Halves


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


@pytest.fixture
def halves(tmp_path: Path) -> Iterator[Halves]:
    with ExitStack() as stack:
        yield Halves(stack, tmp_path)
