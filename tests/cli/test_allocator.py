"""`imap-wal agent` decides where pyarrow takes its memory from, before pyarrow is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.effort import every

AGENT = """
import sys, types
served = types.ModuleType("imap_wal.agent.process")

def run(config):
    import pyarrow
    print(pyarrow.default_memory_pool().backend_name)

served.run = run
sys.modules[served.__name__] = served
from rewrite_cli.cli import main
main()
"""


@every(2)
@pytest.mark.parametrize(("chosen", "pool"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_an_agent_uses_the_systems_allocator(tmp_path: Path, chosen: str | None, pool: str) -> None:
    """Unless the environment names another one."""
    config = tmp_path / "agent.toml"
    config.write_text(
        f'url = "file://{tmp_path}/log"\ncluster = "c"\nnode = "n1"\n'
        f'endpoint = "ipc://{tmp_path}/a.sock"\n'
    )
    environment = {
        name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"
    }
    if chosen:
        environment["ARROW_DEFAULT_MEMORY_POOL"] = chosen
    done = subprocess.run(
        [sys.executable, "-c", AGENT, "agent", "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stdout.split()[-1:] == [pool], done.stderr
