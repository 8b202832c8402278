"""Names the nodes whose entries a command leaves out: all commands that read entries do this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from imap_wal.read.state import ClusterState
from rewrite_cli.console.output import note_once


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A node whose entries, or a part of them, are left out, and why."""

    cluster: str
    node: str
    why: str

    def __str__(self) -> str:
        return f"left out: node {self.node!r} of {self.cluster}: {self.why}"


def note_left_out(nodes: Iterable[LeftOut]) -> None:
    """Print a note for each node that this command has not named before."""
    for node in nodes:
        note_once(str(node))


def left_out_of(cluster: object, why: Mapping[str, str]) -> list[LeftOut]:
    """From the reasons of nodes, of which each is left out."""
    return [LeftOut(str(cluster), node, why[node]) for node in sorted(why)]


def without_copies(state: ClusterState) -> list[LeftOut]:
    """The nodes that a merge leaves out: those with entries that no other log has."""
    return left_out_of(state, state.lacking)


def unread(state: ClusterState, nodes: Iterable[str] = ()) -> list[LeftOut]:
    """The nodes whose own log is not read, or not to its end, among `nodes`; (): among all."""
    selected = set(nodes) or state.missing.keys()
    return left_out_of(
        state, {node: why for node, why in state.missing.items() if node in selected}
    )
