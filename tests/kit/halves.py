"""A cluster of three members with an agent each, and its views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from imap_wal.agent.config import AgentConfig
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from storage_backends import open_store
from tests.agent.harness import Plugin, config, plugin, serving


@contextmanager
def member(settings: AgentConfig, name: str, view: int = 0, cluster: str = "X") -> Iterator[Plugin]:
    """A member that has said hello; its UUID is its name."""
    with plugin(
        settings, greet=False, cluster_id=cluster, uuid=f"plugin of {name}", member=name
    ) as found:
        found.hello(view=view)
        yield found


@contextmanager
def stranger(settings: AgentConfig, name: str, uuid: str = "") -> Iterator[Plugin]:
    """A member that has not said hello yet."""
    with plugin(
        settings, greet=False, cluster_id="X", uuid=uuid or f"plugin of {name}", member=name
    ) as found:
        yield found


def view(
    asking: Plugin, members: str, lost: str = "", changes: dict[str, Any] | None = None
) -> list[Any]:
    """The answer's header without its number."""
    about = {
        "cluster_id": asking.cluster_id,
        "member_uuid": asking.member,
        "members": list(members),
        "lost": list(lost),
    }
    header, _ = asking.client.ask("view", {**about, **(changes or {})})
    return [header[0], *header[2:]]


def greet(asking: Plugin, view: int = 0) -> list[Any]:
    """Say hello again; the answer's header without its number."""
    header, _ = asking.client.ask("hello", asking.about(view=view))
    if header[0] == "welcome":
        asking.session, asking.incarnation = header[2]["session"], header[2]["incarnation"]
        asking.request = header[2]["last_request"]
    return [header[0], *header[2:]]


def restored(url: str) -> dict[str, str]:
    store = open_store(url)
    with closing(MaterializedView(ClusterLog(Context(store), "default", "c"), Settings())) as found:
        found.catch_up()
        return {
            row[KEY].decode(): (row[VALUE] or b"").decode()
            for rows in found.rows("orders")
            for row in rows
        }


class Halves:
    """Members a, b and c of one cluster, each with its own agent; all have written."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.settings = {name: config(folder, f"n-{name}") for name in "abc"}
        self.url = self.settings["a"].url
        self.agents = {
            name: stack.enter_context(serving(each)) for name, each in self.settings.items()
        }
        self.a, self.b, self.c = (
            stack.enter_context(member(each, name)) for name, each in self.settings.items()
        )
        for each in (self.a, self.b, self.c):
            assert each.put(**{f"of {each.member}": "1"})[0] == "ack"
