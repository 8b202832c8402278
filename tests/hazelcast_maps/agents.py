"""Agents for the members of Hazelcast's tests, on threads of this process: a test starts several
members, and there are thousands of tests. An agent of its own process would need a second."""

from __future__ import annotations

import shutil
import socketserver
import sys
import threading
from pathlib import Path

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.process import SWITCH_S
from imap_wal.agent.server import Agent


class Agents:
    """Starts and stops agents for whoever asks at `socket`. Members of one cluster have their logs
    in one folder; each cluster begins without a log."""

    def __init__(self, folder: Path) -> None:
        sys.setswitchinterval(SWITCH_S)  # as in the process of an agent
        self.socket = folder / "agents.sock"
        self._folder = folder
        self._agents: dict[str, Agent] = {}
        self._threads: list[threading.Thread] = []
        self.failures: list[str] = []
        agents = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(agents._answer(self.rfile.readline().decode().split()).encode())

        self._server = socketserver.ThreadingUnixStreamServer(str(self.socket), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _answer(self, question: list[str]) -> str:
        match question:
            case ["start", cluster, node]:
                return self._start(cluster, node)
            case ["stop", node]:
                self._agents.pop(node).stop()
        return ""

    def _start(self, cluster: str, node: str) -> str:
        folder = self._folder / cluster
        folder.mkdir(exist_ok=True)
        config = AgentConfig.from_mapping(
            {
                "url": f"file://{folder}",
                "cluster": "c",
                "node": node,
                "endpoint": f"ipc://{self._folder}/{node}.sock",
                "reserve_bytes": 0,
                # Power is not lost here, and the tests are many.
                "log": {"durability": "os", "segment_bytes": 1 << 20, "preallocate": False},
            }
        )
        self._agents[node] = agent = Agent(config)
        thread = threading.Thread(target=self._serve, args=(agent, node), daemon=True)
        self._threads.append(thread)
        thread.start()
        return config.endpoint

    def _serve(self, agent: Agent, node: str) -> None:
        try:
            agent.serve()
        except Exception as error:
            self.failures.append(f"{node}: {error!r}")

    def end(self) -> None:
        """Stop what a test class has left, and remove its logs."""
        for agent in self._agents.values():
            agent.stop()
        self._agents.clear()
        for thread in self._threads:
            thread.join(30)
        self._threads.clear()
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        self.end()
        self._server.shutdown()
        self._server.server_close()
