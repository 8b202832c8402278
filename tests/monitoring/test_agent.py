"""The metrics and the health of real agents, while they work, fail and are attacked."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent import mender
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.monitoring.listener import CONNECTIONS_MAX, REQUEST_BYTES
from imap_wal.agent.server import Agent
from imap_wal.segment.writer import SegmentWriter
from imap_wal.worker import Worker
from rewrite_cli import doctor
from tests.agent.harness import config, plugin, serving
from tests.kit.agents import AgentProcess
from tests.monitoring.http import Reply, ask, get
from tests.support import eventually


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return replace(config(tmp_path), http_address="127.0.0.1:0")


def metrics(port: int) -> dict[str, float]:
    reply = get(port, "/metrics")
    assert reply.status == 200
    lines = [line.rpartition(" ") for line in reply.body.decode().splitlines()]
    return {name: float(value) for name, _, value in lines if not name.startswith("#")}
